"""What is typed and what is printed: the transcripts of this folder."""

from transcripts import transcripts_of

test_transcript = transcripts_of(__file__)
