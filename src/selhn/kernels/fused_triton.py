"""The Triton kernels of `fused`; imported only where they run.

A program has one block of scores, `ROWS` image anchors by `COLUMNS` text anchors. Names in capitals are known
when a kernel is compiled.
"""

import triton
import triton.language as tl

GROUP = tl.constexpr(16)  # rows of blocks that run side by side, so that what they read stays in the L2 cache
LOG2_E = tl.constexpr(1.4426950408889634)

VARYING = """batch num_rows num_columns width positive row_labels column_labels row_positives column_positives
    row_values row_winners column_values column_winners row_levels column_levels row_weights column_weights
    row_sums column_sums"""
kernel = triton.jit(do_not_specialize=VARYING.split())  # compiled once for all batch sizes


@triton.jit
def _place(num_rows, num_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Which block is this program's, and how many there are: row of blocks, column of blocks."""
    height, width = tl.cdiv(num_rows, ROWS), tl.cdiv(num_columns, COLUMNS)
    group = tl.program_id(0) // (GROUP * width)
    within = tl.program_id(0) % (GROUP * width)
    lines = min(height - group * GROUP, GROUP)
    return group * GROUP + within % lines, within // lines, height, width


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _block_scores(
    images, texts, row, column, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr
):
    """Scores of a block. Every one is added up in the same order, so that equal pairs have equal scores."""
    scores = tl.zeros((ROWS, COLUMNS), tl.float32)
    for k in range(0, width, DEPTH):
        scores = tl.dot(images.load([row, k]), texts.load([column, k]).T, scores)
    return scores


@triton.jit
def _negatives(scores, row_label, column_label):
    """The scores, -inf at pairs of one image and outside of the tile, where labels are -1."""
    lowest_row, lowest_column = tl.min(row_label), tl.min(column_label)
    if (tl.max(row_label) >= lowest_column) & (tl.max(column_label) >= lowest_row):
        scores = tl.where(row_label[:, None] == column_label[None, :], float("-inf"), scores)
    if (lowest_row < 0) | (lowest_column < 0):
        scores = tl.where((row_label < 0)[:, None] | (column_label < 0)[None, :], float("-inf"), scores)
    return scores


@kernel
def positive_scores(
    images, texts, positive, batch, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr
):
    """The diagonal of the blocks that hold it."""
    row = tl.program_id(0) * ROWS
    column = row // COLUMNS * COLUMNS
    tl.static_assert(COLUMNS % ROWS == 0)
    scores = _block_scores(images, texts, row, column, width, ROWS, COLUMNS, DEPTH)
    rows, columns = row + tl.arange(0, ROWS), column + tl.arange(0, COLUMNS)
    diagonal = tl.sum(tl.where(rows[:, None] == columns[None, :], scores, 0.0), 1)
    tl.store(positive + rows, diagonal, mask=rows < batch)


@triton.jit
def _maximum(scores, positive, NAME: tl.constexpr, AXIS: tl.constexpr):
    """The maximum of a block along an axis and its index: the first of equal ones. A NaN is at 0."""
    if NAME == "hardest_below":
        scores = tl.where(scores >= positive, float("-inf"), scores)
    elif NAME == "hardest_up_to":
        scores = tl.where(scores > positive, float("-inf"), scores)
    best = tl.reduce(scores, AXIS, _larger)
    length: tl.constexpr = scores.shape[AXIS]
    index = tl.expand_dims(tl.arange(0, length), 1 - AXIS)
    first = tl.min(tl.where(scores == tl.expand_dims(best, AXIS), index, length), AXIS)
    return best, tl.where(first == length, 0, first)


@triton.jit
def _sum(scores, positive, margin, scale, bias, NAME: tl.constexpr, AXIS: tl.constexpr):
    """A statistic over all negatives of a block along an axis."""
    if NAME == "hinge_sum":
        total = tl.sum(_larger(scores + (margin - positive), 0.0), AXIS)
    elif NAME == "log_sum_exp":
        logits = scores * (scale * LOG2_E)
        best = tl.reduce(logits, AXIS, _larger)
        best = tl.where(best == float("-inf"), 0.0, best)
        total = (best + tl.log2(tl.sum(tl.exp2(logits - tl.expand_dims(best, AXIS)), AXIS))) / LOG2_E
    else:
        tl.static_assert(NAME == "softplus_sum")
        logits = scores * scale + bias
        # log(1 + x) = 2 artanh(x / (2 + x)), by its series: log itself would lose a small x to the 1.
        x = tl.exp(-tl.abs(logits))
        z = x / (2 + x)
        y = z * z
        series = 1 + y * (1 / 3 + y * (1 / 5 + y * (1 / 7 + y * (1 / 9 + y * (1 / 11 + y * (1 / 13))))))
        total = tl.sum(tl.maximum(logits, 0.0) + 2 * z * series, AXIS)
    return total


@triton.jit
def _reaches(scores, row_positive, column_positive, margin):
    """Whether any hinge of a block may be above 0, or NaN; a bound, and nearly free beside the maxima."""
    best = tl.reduce(scores, 1, _larger)
    of_rows = tl.reduce(best + (margin - row_positive), 0, _larger)
    of_columns = tl.reduce(best, 0, _larger) + tl.reduce(margin - column_positive, 0, _larger)
    reach = _larger(of_rows, of_columns)
    return (reach > 0) | (reach != reach)


@kernel
def reduce_scores(
    images, texts, row_labels, column_labels, row_positives, column_positives,
    row_values, row_winners, column_values, column_winners,
    num_rows, num_columns, width, margin, scale, bias,
    NAMES: tl.constexpr, MAXIMA: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The statistics `NAMES` of a block, of which the first `MAXIMA` are maxima, for rows and for columns."""
    row_block, column_block, row_blocks, column_blocks = _place(num_rows, num_columns, ROWS, COLUMNS)
    row, column = row_block * ROWS, column_block * COLUMNS
    scores = _block_scores(images, texts, row, column, width, ROWS, COLUMNS, DEPTH)
    rows, columns = row + tl.arange(0, ROWS), column + tl.arange(0, COLUMNS)
    in_rows, in_columns = rows < num_rows, columns < num_columns
    row_label = tl.load(row_labels + rows, mask=in_rows, other=-1)
    column_label = tl.load(column_labels + columns, mask=in_columns, other=-1)
    scores = _negatives(scores, row_label, column_label)
    row_positive = tl.load(row_positives + rows, mask=in_rows, other=0.0)
    column_positive = tl.load(column_positives + columns, mask=in_columns, other=0.0)
    to_rows, to_columns = column_block * num_rows + rows, row_block * num_columns + columns
    for slot in tl.static_range(len(NAMES)):
        if slot < MAXIMA:
            best, winner = _maximum(scores, row_positive[:, None], tl.constexpr(NAMES[slot]), 1)
            tl.store(row_values + to_rows, best, mask=in_rows)
            tl.store(row_winners + to_rows, column + winner, mask=in_rows)
            best, winner = _maximum(scores, column_positive[None, :], tl.constexpr(NAMES[slot]), 0)
            tl.store(column_values + to_columns, best, mask=in_columns)
            tl.store(column_winners + to_columns, row + winner, mask=in_columns)
        else:
            of_rows, of_columns = tl.zeros((ROWS,), tl.float32), tl.zeros((COLUMNS,), tl.float32)
            wanted = True
            if NAMES[slot] == "hinge_sum":
                wanted = _reaches(scores, row_positive, column_positive, margin)
            if wanted:
                of_rows = _sum(
                    scores, row_positive[:, None], margin, scale, bias, tl.constexpr(NAMES[slot]), 1
                )
                of_columns = _sum(
                    scores, column_positive[None, :], margin, scale, bias, tl.constexpr(NAMES[slot]), 0
                )
            tl.store(row_values + to_rows, of_rows, mask=in_rows)
            tl.store(column_values + to_columns, of_columns, mask=in_columns)
        to_rows += column_blocks * num_rows
        to_columns += row_blocks * num_columns


@triton.jit
def _pull(scores, level, weight, margin, scale, bias, NAME: tl.constexpr):
    """`Statistic.derivative` times the anchors' weights."""
    if NAME == "hinge_sum":
        pulls = tl.where(scores + (margin - level) > 0, weight, 0.0)
    elif NAME == "log_sum_exp":
        pulls = weight * tl.exp2(scores * (scale * LOG2_E) - level * LOG2_E)
    else:
        tl.static_assert(NAME == "softplus_sum")
        pulls = weight / (1 + tl.exp(-(scores * scale + bias)))
    return pulls


@kernel
def pull_scores(
    images, texts, pulls, row_labels, column_labels, row_levels, column_levels, row_weights, column_weights,
    row_sums, column_sums, num_rows, num_columns, width, margin, scale, bias,
    NAME: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The gradient by the scores of a block, and the sums that `fused.pull_tile` returns."""
    row_block, column_block, row_blocks, column_blocks = _place(num_rows, num_columns, ROWS, COLUMNS)
    row, column = row_block * ROWS, column_block * COLUMNS
    scores = _block_scores(images, texts, row, column, width, ROWS, COLUMNS, DEPTH)
    rows, columns = row + tl.arange(0, ROWS), column + tl.arange(0, COLUMNS)
    in_rows, in_columns = rows < num_rows, columns < num_columns
    row_label = tl.load(row_labels + rows, mask=in_rows, other=-1)
    column_label = tl.load(column_labels + columns, mask=in_columns, other=-1)
    scores = _negatives(scores, row_label, column_label)
    level = tl.load(row_levels + rows, mask=in_rows, other=0.0)[:, None]
    weight = tl.load(row_weights + rows, mask=in_rows, other=0.0)[:, None]
    of_rows = _pull(scores, level, weight, margin, scale, bias, NAME)
    level = tl.load(column_levels + columns, mask=in_columns, other=0.0)[None, :]
    weight = tl.load(column_weights + columns, mask=in_columns, other=0.0)[None, :]
    of_columns = _pull(scores, level, weight, margin, scale, bias, NAME)
    exact = of_rows + of_columns
    rounded = exact.to(pulls.dtype)
    pulls.store([row, column], rounded)
    lost = exact - rounded.to(tl.float32)
    row_sums += column_block * num_rows + rows
    column_sums += row_block * num_columns + columns
    if NAME == "hinge_sum":
        tl.store(row_sums, tl.sum(of_rows, 1), mask=in_rows)
        tl.store(column_sums, tl.sum(of_columns, 0), mask=in_columns)
    tl.store(row_sums + column_blocks * num_rows, tl.sum(lost, 1), mask=in_rows)
    tl.store(column_sums + row_blocks * num_columns, tl.sum(lost, 0), mask=in_columns)
