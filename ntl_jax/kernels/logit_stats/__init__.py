"""One pass over the columns of the logits, forward and back; see `dispatch`."""
