"""The process that serves the page: one FastAPI application, who may talk to it, and its start and end.

May import `app.ui` and the rest of `app`. It is cut there so that everything that decides over access and
over the life of the process can be read, and tested over real HTTP, without the page.
"""
