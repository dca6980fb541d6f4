"""The page: what a person sees and touches, made of Gradio components.

Pure parts turn values into HTML (`markup`, `transcript`, `documents`, `reader`, `engine`, all in `screen`).
Two hold what every open page shows (`desk`: the chats and the running answer; `intake`: files on their way
into the library). The rest knows Gradio (`theme`, `layout`, `listeners`, `page`). May import all of `app` but
`app.server`. It is cut there so that all that is hostile (names, text, a model's words) becomes HTML in
functions that a test can call.
"""
