"""The measured table of operators: small graphs, what each release's compiler makes of them, and the recorded answers.

``python -m deploykit_ort_qnn.atlas`` measures; ``records`` alone is read when a question is answered.
"""

__all__: list[str] = []
