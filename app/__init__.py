"""What a person touches: command line, HTTP, page; and the words around documents, questions and answers.

The only folder that knows both `ingest` and `runtime`, and only `assistant.py` calls both.
"""
