"""Whole engines, tested from outside: do they run the model of the checkpoint, and does speculation leave their output
unchanged?

    engine (its own process and environment)  <- JSON lines or HTTP ->  judge (here)
    checkpoint                                                       -> float64 oracle (`oracle`)

`protocol` defines the messages, `program` and `http` transport them, `schedules` draws traffic, `laws` judges an answer,
`judge/` runs an engine through its configurations, `diagnosis` explains failures, `table` prints the results.
"""
