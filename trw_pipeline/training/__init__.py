"""One epoch: options, optimizers, the run, the callback protocol, history and the loop."""
