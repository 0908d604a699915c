"""The word error rate of greedy CTC decoding against a folder of transcripts: an example of ``--metric``.

    deploykit … --data speech.npz --metric speech:word_error_rate --references transcripts/ --lower-is-better

One text file per sample, in the order of the data. The first output holds logits: batch x time x letters; the letters
are those of ``ALPHABET``, with the blank in the first place.
"""

from __future__ import annotations

ALPHABET = "_ abcdefghijklmnopqrstuvwxyz'"


def word_error_rate(outputs, references):
    """Errors per word that was said: 0 is right, and less is better."""
    errors = words = 0
    for made, path in zip(outputs, references, strict=True):
        said = path.read_text("utf-8").lower().split()
        errors += _edits(_decoded(next(iter(made.values()))).split(), said)
        words += len(said)
    return errors / max(words, 1)


def _decoded(logits):
    """The likeliest letter of each step, repetitions joined, blanks left out."""
    text, last = "", 0
    for letter in logits.reshape(-1, logits.shape[-1]).argmax(axis=-1):
        if letter != last and letter != 0:
            text += ALPHABET[letter]
        last = letter
    return text


def _edits(made, said):
    """The least number of words to insert, leave out or replace."""
    row = list(range(len(said) + 1))
    for place, word in enumerate(made, 1):
        before, row[0] = row[0], place
        for column, other in enumerate(said, 1):
            before, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, before + (word != other))
    return row[-1]
