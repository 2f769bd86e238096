"""Variants of the tuner's halving, replayed at 20 clients, on old and on new tasks.

    python -m benchmarks.halving_variants benchmarks/trained/*.jsonl [--draws 1000]

In a draw 20 clients and 16 trials of a task are drawn, the app's defaults among them,
and halving is replayed as `FederationTuner` decides it. The figure is the loss of test
accuracy of the chosen trial against the best of the file's. All variants share draws
and noise; a difference is a mean over these pairs, by task, and then over tasks.

The tasks ``digits-20``, ``digits-100``, ``har`` and ``writers`` are those on which the
half was chosen that is carried. ``magic`` and ``shuttle`` are new: nothing was chosen
on them. Endpoints, written down before any of their trials was replayed, all at epsilon
2, delta 1e-3, in the mean over the two new tasks, where the best score is chosen
(``keep_defaults=False``) unless said otherwise:

- *Carried scores*: rung r > 1 is decided by its released scores plus half of those that
  rung r - 1 released, compared with its released scores alone. Better: the mean
  difference of loss is below 0, and twice its standard error does not reach .0005. It
  is adopted then; otherwise it is not.
- *Two rungs*: ``Halving(18, (3, 27))``, which takes 102 trial-rounds, compared with
  ``Halving(16, (3, 9, 27))``, which takes 114; both carry. No worse: the mean
  difference plus twice its standard error is at most .001.
- *Partial ballots*: each trial of a rung is evaluated at a share of .1, .5 or 1 of the
  clients, drawn for each trial. Ballots on a part of the trials are scaled (today's
  form), or as large as a full one (unscaled: of norm 1), or that and clipped to the
  entries of a full one. Another form is adopted if at .1 its loss is lower by twice the
  standard error, and is not higher, by the same measure, at any share and under any
  lie. A third of the clients lies together: they reverse their scores, do what they
  can for the worst trial, or have no finite score. Whatever was evaluated where, a liar
  sends what its message allows at most.
- *Bars*: the loss is within .001 of that of exact means, and with a third lying at most
  .02 above it, on each task, old and new. The rule with defaults that are kept is
  printed beside it.
"""
