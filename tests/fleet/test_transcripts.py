"""What is typed and what is printed: the transcripts of this folder, whose cells are made in this process."""

import pytest

from transcripts import transcripts_of

pytestmark = pytest.mark.usefixtures("in_this_process")
test_transcript = transcripts_of(__file__)
