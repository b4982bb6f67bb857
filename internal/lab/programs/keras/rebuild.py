"""Makes a compiled model for each step, or sets the same one back to its start, and trains it on one batch."""

import common
import training


def main():
    options = training.parse(__doc__, reuse=[0, 1])
    x, y = common.Samples(options.seed, (224, 224, 3), 10).make(options.batch, 0)
    losses = []
    if options.reuse:
        learner = training.Learner("image-224", options)
        variables = [*learner.model.variables, *learner.model.optimizer.variables]
        initial = [v.numpy() for v in variables]
    for n in range(1, options.steps + 1):
        if options.reuse:
            for variable, value in zip(variables, initial):
                variable.assign(value)
        else:
            learner = training.Learner("image-224", options)
        losses.append(learner.step(x, y))
        if options.delete and not options.reuse:
            del learner
        common.end_step(n, options)
    return losses[0], losses[-1]


common.finish(main())
