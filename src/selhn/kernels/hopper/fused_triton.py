"""The Triton kernels of `fused`; imported only where they run.

A block of scores is `ROWS` image anchors by `COLUMNS` text anchors. Names in capitals are known when a kernel
is compiled.
"""

import triton
import triton.language as tl
from triton.language.extra.libdevice import fast_dividef

GROUP = tl.constexpr(16)  # rows of blocks that run side by side, so that what they read stays in the L2 cache
LOG2_E = tl.constexpr(1.4426950408889634)
LOW = tl.constexpr(0x7FFFFFFF)

VARYING = """positive batch num_rows num_columns width row_labels column_labels row_ranges column_ranges row_levels
    column_levels row_keys column_keys row_weights column_weights row_spans column_spans row_sums column_sums
    of_images of_texts first_block order keys labels candidate_labels positives values winners num_anchors
    num_candidates"""
kernel = triton.jit(do_not_specialize=VARYING.split())  # compiled once for all batch sizes


@triton.jit
def _place(block, height, width):
    """The row and the column of a block, of which there are height x width."""
    group, within = block // (GROUP * width), block % (GROUP * width)
    lines = min(height - group * GROUP, GROUP)
    return group * GROUP + within % lines, within // lines


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
def _negatives(
    scores,
    row_labels,
    column_labels,
    row_ranges,
    column_ranges,
    row_block,
    column_block,
    num_rows,
    num_columns,
):
    """The scores, -inf at pairs of one image and outside of the matrix; with the rows and columns they are at.

    The lowest and the highest label of every block are known: most blocks need no mask.
    """
    ROWS: tl.constexpr = scores.shape[0]
    COLUMNS: tl.constexpr = scores.shape[1]
    rows, columns = row_block * ROWS + tl.arange(0, ROWS), column_block * COLUMNS + tl.arange(0, COLUMNS)
    row_ranges += 2 * row_block
    column_ranges += 2 * column_block
    meet = tl.load(row_ranges) <= tl.load(column_ranges + 1)
    meet &= tl.load(column_ranges) <= tl.load(row_ranges + 1)
    if meet | ((row_block + 1) * ROWS > num_rows) | ((column_block + 1) * COLUMNS > num_columns):
        row_label = tl.load(row_labels + rows, mask=rows < num_rows, other=-1)[:, None]
        column_label = tl.load(column_labels + columns, mask=columns < num_columns, other=-1)[None, :]
        masked = (row_label == column_label) | (row_label < 0) | (column_label < 0)
        scores = tl.where(masked, float("-inf"), scores)
    return scores, rows, columns


@kernel
def positive_scores(
    images, texts, positive, batch, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr
):
    """The diagonal of square blocks."""
    row = tl.program_id(0) * ROWS
    scores = _block_scores(images, texts, row, row, width, ROWS, COLUMNS, DEPTH)
    rows, columns = row + tl.arange(0, ROWS), row + tl.arange(0, COLUMNS)
    diagonal = tl.sum(tl.where(rows[:, None] == columns[None, :], scores, 0.0), 1)
    tl.store(positive + rows, diagonal, mask=rows < batch)


@triton.jit
def _candidates(scores, positive, NAME: tl.constexpr):
    """The scores of which a maximum is taken."""
    if NAME == "hardest_below":
        scores = tl.where(scores >= positive, float("-inf"), scores)
    elif NAME == "hardest_up_to":
        scores = tl.where(scores > positive, float("-inf"), scores)
    return scores


@triton.jit
def _raise(keys, best, block, inside):
    """Raise the keys of anchors to the best score of a block, of equal ones that of the first block.

    A key is a score as an integer of the same order, a NaN the highest, above the block counted down. The
    largest key is the same in whichever order the blocks come.
    """
    bits = (best + 0.0).to(tl.int32, bitcast=True)  # -0 becomes 0
    ordered = tl.where(bits < 0, bits ^ LOW, bits)
    key = (ordered.to(tl.int64) << 32) | (LOW - block)
    tl.atomic_max(keys, key, mask=inside, sem="relaxed")


@triton.jit
def _log_sum_exp(logits, AXIS: tl.constexpr):
    """To base 2, from the largest logit on."""
    best = tl.reduce(logits, AXIS, _larger)
    best = tl.where(best == float("-inf"), 0.0, best)
    return best + tl.log2(tl.sum(tl.exp2(logits - tl.expand_dims(best, AXIS)), AXIS))


@triton.jit
def _sums(scores, row_positive, column_positive, margin, scale, bias, NAME: tl.constexpr):
    """A statistic over all negatives of a block, for rows and for columns."""
    if NAME == "hinge_sum":
        of_rows = tl.sum(_larger(scores + (margin - row_positive)[:, None], 0.0), 1)
        of_columns = tl.sum(_larger(scores + (margin - column_positive)[None, :], 0.0), 0)
    elif NAME == "log_sum_exp":
        logits = scores * (scale * LOG2_E)
        if tl.max(tl.abs(logits)) < 60:  # all exponentials are in range, and those for rows serve for columns
            exponentials = tl.exp2(logits)
            of_rows, of_columns = tl.log2(tl.sum(exponentials, 1)), tl.log2(tl.sum(exponentials, 0))
        else:
            of_rows, of_columns = _log_sum_exp(logits, 1), _log_sum_exp(logits, 0)
        of_rows, of_columns = of_rows / LOG2_E, of_columns / LOG2_E
    else:
        tl.static_assert(NAME == "softplus_sum")
        logits = scores * scale + bias
        # log(1 + x) = 2 artanh(x / (2 + x)), by its series: log itself would lose a small x to the 1.
        x = tl.exp2(-tl.abs(logits) * LOG2_E)
        z = fast_dividef(x, 2 + x)
        y = z * z
        series = 1 + y * (1 / 3 + y * (1 / 5 + y * (1 / 7 + y * (1 / 9 + y * (1 / 11 + y * (1 / 13))))))
        terms = tl.maximum(logits, 0.0) + 2 * z * series
        of_rows, of_columns = tl.sum(terms, 1), tl.sum(terms, 0)
    return of_rows, of_columns


@triton.jit
def _reaches(scores, row_positive, column_positive, margin):
    """Whether any hinge of a block is above 0, or NaN; nearly free beside the maxima."""
    of_rows = tl.reduce(scores, 1, _larger) + (margin - row_positive)
    of_columns = tl.reduce(scores, 0, _larger) + (margin - column_positive)
    reach = _larger(tl.reduce(of_rows, 0, _larger), tl.reduce(of_columns, 0, _larger))
    return (reach > 0) | (reach != reach)


@kernel
def reduce_scores(
    images, texts, num_rows, num_columns, width, row_labels, column_labels, row_ranges, column_ranges,
    row_levels, column_levels, row_keys, column_keys, row_sums, column_sums, of_images, first_block,
    margin, scale, bias,
    NAMES: tl.constexpr, MAXIMA: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The statistics `NAMES` of a block, of which the first `MAXIMA` are maxima, for rows and for columns."""
    row_blocks, column_blocks = tl.cdiv(num_rows, ROWS), tl.cdiv(num_columns, COLUMNS)
    row_block, column_block = _place(tl.program_id(0), row_blocks, column_blocks)
    row, column = row_block * ROWS, column_block * COLUMNS
    scores = _block_scores(images, texts, row, column, width, ROWS, COLUMNS, DEPTH)
    scores, rows, columns = _negatives(
        scores, row_labels, column_labels, row_ranges, column_ranges, row_block, column_block,
        num_rows, num_columns,
    )  # fmt: skip
    in_rows, in_columns = rows < num_rows, columns < num_columns
    row_positive = tl.load(row_levels + rows, mask=in_rows, other=0.0)
    column_positive = tl.load(column_levels + columns, mask=in_columns, other=0.0)
    row_keys += rows
    column_keys += columns
    row_sums += column_block.to(tl.int64) * num_rows + rows
    column_sums += row_block.to(tl.int64) * num_columns + columns
    for slot in tl.static_range(len(NAMES)):
        if slot < MAXIMA:
            found = _candidates(scores, row_positive[:, None], tl.constexpr(NAMES[slot]))
            _raise(row_keys, tl.reduce(found, 1, _larger), column_block, in_rows)
            found = _candidates(scores, column_positive[None, :], tl.constexpr(NAMES[slot]))
            _raise(column_keys, tl.reduce(found, 0, _larger), first_block + row_block, in_columns)
            row_keys += of_images
            column_keys += num_columns
        else:
            of_rows, of_columns = tl.zeros((ROWS,), tl.float32), tl.zeros((COLUMNS,), tl.float32)
            wanted = True
            if NAMES[slot] == "hinge_sum":
                wanted = _reaches(scores, row_positive, column_positive, margin)
            if wanted:
                of_rows, of_columns = _sums(
                    scores, row_positive, column_positive, margin, scale, bias, tl.constexpr(NAMES[slot])
                )
            tl.store(row_sums, of_rows, mask=in_rows)
            tl.store(column_sums, of_columns, mask=in_columns)
            row_sums += column_blocks.to(tl.int64) * num_rows
            column_sums += row_blocks.to(tl.int64) * num_columns


@kernel
def find_winners(
    anchors, candidates, order, keys, labels, candidate_labels, positives, values, winners,
    num_anchors, num_candidates, width,
    NAME: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The maxima of anchors and the candidates that have them: the first of equal ones. A NaN is at any.

    The keys of `reduce_scores` name the block of a winner, and `order` has the anchors of a block together:
    the scores of these few are computed once more.
    """
    places = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = places < num_anchors
    anchor = tl.load(order + places, mask=inside, other=0)
    key = tl.load(keys + anchor)
    ordered = (key >> 32).to(tl.int32)
    value = tl.where(ordered < 0, ordered ^ LOW, ordered).to(tl.float32, bitcast=True)
    block = tl.where(inside & (value != float("-inf")), LOW - (key & LOW).to(tl.int32), LOW)
    label = tl.load(labels + anchor)[:, None]
    positive = tl.load(positives + anchor)[:, None]
    rows = anchors + anchor.to(tl.int64)[:, None] * (width // 8 * 8)  # which says that these are aligned
    winner = tl.full((ROWS,), -1, tl.int32)
    index, depth = tl.arange(0, COLUMNS), tl.arange(0, DEPTH)
    current = tl.min(block)
    while current < LOW:
        scores = tl.zeros((ROWS, COLUMNS), tl.float32)
        for k in range(0, width, DEPTH):
            part = tl.load(rows + (k + depth)[None, :], mask=(k + depth < width // 8 * 8)[None, :], other=0.0)
            scores = tl.dot(part, candidates.load([current * COLUMNS, k]).T, scores)
        columns = current * COLUMNS + index
        of_columns = tl.load(candidate_labels + columns, mask=columns < num_candidates, other=-1)[None, :]
        scores = tl.where((label == of_columns) | (of_columns < 0), float("-inf"), scores)
        scores = _candidates(scores, positive, NAME)
        best = tl.reduce(scores, 1, _larger)
        first = tl.min(tl.where(scores == best[:, None], index[None, :], COLUMNS), 1)
        winner = tl.where(block == current, current * COLUMNS + first % COLUMNS, winner)
        current = tl.min(tl.where(block > current, block, LOW))
    tl.store(values + anchor, value, mask=inside)
    tl.store(winners + anchor, winner, mask=inside)


@triton.jit
def _rounded(exact, dtype: tl.constexpr):
    """In half precision; two numbers at once, which `to` does not do if its result is read again."""
    if dtype == tl.bfloat16:
        rounded = tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [exact], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    else:
        rounded = exact.to(dtype)
    return rounded


@triton.jit
def _exponentials(scores, level, weight, scale):
    return weight * tl.exp2(scores * (scale * LOG2_E) - level * LOG2_E)


@triton.jit
def _pull_half(
    scores, pulls, row, column, row_level, row_weight, column_levels, column_weights, column_sums,
    lowest, highest, num_columns, of_texts, margin, scale, bias, NAME: tl.constexpr,
):  # fmt: skip
    """Store the gradient by the scores of half a block, and its sums for the columns; return those for the rows."""
    columns = column + tl.arange(0, scores.shape[1])
    in_columns = columns < num_columns
    column_weight = tl.load(column_weights + columns, mask=in_columns, other=0.0)[None, :]
    own = tl.zeros((scores.shape[0],), tl.float32)
    if NAME == "softplus_sum":
        exact = fast_dividef(row_weight + column_weight, 1 + tl.exp2(-(scores * scale + bias) * LOG2_E))
    else:
        column_level = tl.load(column_levels + columns, mask=in_columns, other=float("inf"))[None, :]
        if NAME == "hinge_sum":
            of_rows = tl.where(scores > row_level - margin, row_weight, 0.0)
            of_columns = tl.where(scores > column_level - margin, column_weight, 0.0)
            own = tl.sum(of_rows, 1)
            tl.store(column_sums + of_texts + columns, tl.sum(of_columns, 0), mask=in_columns)
            exact = of_rows + of_columns
        elif highest - lowest < 40:  # one exponential for both sides, which neither overflows nor vanishes
            row_weight *= tl.exp2((highest - row_level) * LOG2_E)
            column_weight *= tl.exp2((highest - column_level) * LOG2_E)
            exact = _exponentials(scores, highest, row_weight + column_weight, scale)
        else:
            exact = _exponentials(scores, row_level, row_weight, scale)
            exact += _exponentials(scores, column_level, column_weight, scale)
    rounded = _rounded(exact, pulls.dtype)
    pulls.store([row, column], rounded)
    lost = exact - rounded.to(tl.float32)
    tl.store(column_sums + columns, tl.sum(lost, 0), mask=in_columns)
    return tl.sum(lost, 1), own


@kernel
def pull_scores(
    images, texts, num_rows, num_columns, width, row_labels, column_labels, row_ranges, column_ranges,
    row_levels, column_levels, row_weights, column_weights, row_spans, column_spans, pulls, row_sums, column_sums,
    of_texts, margin, scale, bias,
    NAME: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The gradient by the scores of a block, and the sums that `fused.add_pulls` returns.

    Half a block at a time: all of its numbers at once would not fit in the registers.
    """
    row_blocks, column_blocks = tl.cdiv(num_rows, ROWS), tl.cdiv(num_columns, COLUMNS)
    row_block, column_block = _place(tl.program_id(0), row_blocks, column_blocks)
    row, column = row_block * ROWS, column_block * COLUMNS
    scores = _block_scores(images, texts, row, column, width, ROWS, COLUMNS, DEPTH)
    scores, rows, columns = _negatives(
        scores, row_labels, column_labels, row_ranges, column_ranges, row_block, column_block,
        num_rows, num_columns,
    )  # fmt: skip
    in_rows = rows < num_rows
    row_level = tl.load(row_levels + rows, mask=in_rows, other=float("inf"))[:, None]
    row_weight = tl.load(row_weights + rows, mask=in_rows, other=0.0)[:, None]
    lowest, highest = 0.0, 0.0
    if NAME == "log_sum_exp":
        row_spans += 2 * row_block
        column_spans += 2 * column_block
        lowest = tl.minimum(tl.load(row_spans), tl.load(column_spans))
        highest = tl.maximum(tl.load(row_spans + 1), tl.load(column_spans + 1))
    SUMS: tl.constexpr = 2 if NAME == "hinge_sum" else 1
    row_sums += column_block.to(tl.int64) * SUMS * num_rows + rows
    column_sums += row_block.to(tl.int64) * SUMS * of_texts
    HALF: tl.constexpr = COLUMNS // 2
    left, right = scores.reshape(ROWS, 2, HALF).permute(0, 2, 1).split()
    lost, own = _pull_half(
        left, pulls, row, column, row_level, row_weight, column_levels, column_weights, column_sums,
        lowest, highest, num_columns, of_texts, margin, scale, bias, NAME,
    )  # fmt: skip
    lost_too, own_too = _pull_half(
        right, pulls, row, column + HALF, row_level, row_weight, column_levels, column_weights, column_sums,
        lowest, highest, num_columns, of_texts, margin, scale, bias, NAME,
    )  # fmt: skip
    tl.store(row_sums, lost + lost_too, mask=in_rows)
    if NAME == "hinge_sum":
        tl.store(row_sums + num_rows, own + own_too, mask=in_rows)
