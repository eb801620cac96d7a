# ssmspec failure, schema 2
# Deviation: faulty: K of layer 0, slot 0 came with shape (4, 1, 6), plain decoding has (5, 1, 6)
from conformance.interpreter.device import placed

with placed("cpu") as place:
    from property_tests.sessions.session import Session

    session = Session(
        "one_fault:adapter",
        ["faulty", "faulty"],
        {"kinds": ["attention", "delta"], "seed": 0, "vocabulary": 3, "options": {}},
        slots=3,
        window=5,
        cache=16,
        device=place,
    )
    session.prefill(d=1, prompts=[[2, 1, 2, 0]], slots=[0])
    session.prefill(d=1, prompts=[[1, 2, 0, 0]], slots=[2])
    session.verify(
        d=1, tokens=[[0, 1, 0], [0, 2, 0], [0, 0, 2]], slots=[2, 0, -1], parents=[[-1, 0, -2], [-1, 0, 0], [-1, 0, 1]]
    )
    session.commit(paths=[[0], [0, 2], []], kept=[1, 2, 0], rows=[0, 1, 2], roots=[0, 2, 0], look=False)
    session.hand_over(d=1, slot=0, other=0, to=0)
