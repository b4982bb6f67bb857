"""Predicts for a batch in each step, and keeps the values."""

import common


def main():
    options = common.parse(__doc__, history=["keep", "last"])
    model, _ = common.make_model("digits")
    model.compile()
    x, _ = common.Samples(options.seed, (64,), 10).make(options.batch, 0)
    history = []
    for n in range(1, options.steps + 1):
        values = model.predict(x, batch_size=len(x), verbose=0)
        if options.history == "last":
            history.clear()
        history.append(values)
        common.end_step(n, options)


common.finish(main())
