"""The engine as a server: completions over HTTP in OpenAI's form. Extra `serve`.

    network (connections, time-outs) -> guard (key, size) -> app (one request: parsed, checked, refused)
    app -> worker (one thread, one scheduler)
    worker -> choice (tokens, text, stops of one completion) -> pieces -> app (one answer, or a stream of events)

This package does not decide when a request runs, joins or ends: `engine.scheduler` does.
"""
