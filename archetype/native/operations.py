"""The arguments of each native operation. The C++ struct of the same name explains the fields.

The order of the classes is the order of `operations` in kernels.cpp.
"""

from archetype.native.arguments import (
    Arguments,
    Cached,
    Flag,
    Float,
    Function,
    Gate,
    Number,
    Optional,
    Read,
    Row,
    Size,
    Sizes2,
    Sizes3,
    Sizes4,
    Type,
    Written,
    operation,
)


@operation
class Product(Arguments):
    """y = x w^T + bias, with one matrix for all vectors, or a matrix of a stack for each vector."""

    y: Written
    x: Read
    w: Read
    bias: Optional
    indices: Optional
    scales: Optional
    high_bytes: Optional
    starts: Optional
    exceptions: Optional
    vectors: Size
    rows: Size
    features: Size
    x_stride: Size
    w_stride: Size
    y_stride: Size
    choices: Size
    matrices: Size
    matrix_stride: Size
    x_type: Float
    w_type: Type
    bias_type: Type
    y_type: Float


@operation
class BatchedProduct(Arguments):
    """y[b] = x[b] w[b]."""

    y: Written
    x: Read
    w: Read
    batch: Size
    rows: Size
    columns: Size
    features: Size
    x_strides: Sizes3
    w_strides: Sizes3
    y_strides: Sizes3
    x_type: Float
    w_type: Float
    y_type: Float


@operation
class Attend(Arguments):
    """softmax(scale q k^T) v over a cache."""

    y: Written
    q: Read
    keys: Read
    values: Read
    positions: Optional
    slopes: Optional
    sinks: Optional
    mask: Optional
    q2: Optional
    keys2: Optional
    keys_scales: Optional
    values_scales: Optional
    keys2_scales: Optional
    batch: Size
    heads: Size
    key_heads: Size
    queries: Size
    places: Size
    features: Size
    value_features: Size
    features2: Size
    q_strides: Sizes3
    q2_strides: Sizes3
    keys_strides: Sizes3
    keys2_strides: Sizes3
    values_strides: Sizes3
    keys_scales_strides: Sizes3
    values_scales_strides: Sizes3
    keys2_scales_strides: Sizes3
    positions_strides: Sizes2
    y_strides: Sizes3
    mask_strides: Sizes4
    window: Size
    part: Size
    scale: Number
    softcap: Number
    q_type: Float
    y_type: Float
    cache_type: Cached
    mask_type: Type
    is_ring: Flag
    is_by_distance: Flag


@operation
class JoinParts(Arguments):
    """Combine the results of attention over parts of a cache into the result for the whole cache."""

    y: Written
    parts: Read
    sinks: Optional
    batch: Size
    heads: Size
    queries: Size
    count: Size
    features: Size
    y_strides: Sizes3
    y_type: Float


@operation
class Append(Arguments):
    """Write new keys or values into their cache slots."""

    buffer: Written
    added: Read
    positions: Read
    batch: Size
    heads: Size
    added_places: Size
    features: Size
    places: Size
    added_strides: Sizes3
    buffer_strides: Sizes3
    positions_strides: Sizes2
    added_type: Float
    buffer_type: Cached


@operation
class AppendScaled(Arguments):
    """Write new keys or values into their cache slots as int8, with a factor for each slot and head."""

    buffer: Written
    scales: Written
    added: Read
    positions: Read
    batch: Size
    heads: Size
    added_places: Size
    features: Size
    places: Size
    added_strides: Sizes3
    buffer_strides: Sizes3
    scales_strides: Sizes3
    positions_strides: Sizes2
    added_type: Float


@operation
class CopyPlaces(Arguments):
    """Copy cache slots from one sequence to another."""

    keys: Written
    values: Written
    sources: Read
    starts: Read
    ends: Read
    rows: Size
    heads: Size
    places: Size
    keys_strides: Sizes3
    values_strides: Sizes3


@operation
class Pointwise(Arguments):
    """y = f(a, b, c), broadcast."""

    y: Written
    a: Read
    b: Optional
    c: Optional
    sizes: Sizes4
    y_strides: Sizes4
    a_strides: Sizes4
    b_strides: Sizes4
    c_strides: Sizes4
    factor: Number
    function: Function
    y_type: Type
    a_type: Type
    b_type: Type
    c_type: Type
    is_whole: Flag


@operation
class Rows(Arguments):
    """A function of each row."""

    y: Written
    x: Read
    weight: Optional
    bias: Optional
    rows: Size
    features: Size
    x_stride: Size
    eps: Number
    function: Row
    y_type: Float
    x_type: Float
    weight_type: Float
    bias_type: Float


@operation
class RmsNormBackward(Arguments):
    """The gradients of RMSNorm."""

    dx: Written
    dweight: Written
    x: Read
    weight: Read
    dy: Read
    rows: Size
    features: Size
    x_stride: Size
    piece_rows: Size
    eps: Number
    dx_type: Float
    x_type: Float
    weight_type: Float
    dy_type: Float


@operation
class Embedding(Arguments):
    """Rows of a table by index."""

    y: Written
    table: Read
    ids: Read
    count: Size
    rows: Size
    row_bytes: Size


@operation
class QuantizedEmbedding(Arguments):
    """Rows of an 8-bit or 4-bit matrix by index."""

    y: Written
    quants: Read
    scales: Read
    ids: Read
    count: Size
    rows: Size
    features: Size
    bits: Size
    y_type: Float


@operation
class UnpackedRows(Arguments):
    """Rows of a lossless matrix by index, or all rows."""

    y: Written
    records: Read
    high_bytes: Read
    starts: Read
    exceptions: Optional
    ids: Optional
    count: Size
    rows: Size
    features: Size
    y_type: Float


@operation
class Topk(Arguments):
    """The k largest elements of each row."""

    values: Written
    indices: Written
    x: Read
    rows: Size
    features: Size
    k: Size


@operation
class Gather(Arguments):
    """y[r, i] = x[r, index[r, i]]."""

    y: Written
    x: Read
    index: Read
    rows: Size
    columns: Size
    features: Size


@operation
class Gated(Arguments):
    """y = f(gate) * up."""

    y: Written
    gate: Read
    up: Read
    count: Size
    activation: Gate
    type: Float


@operation
class GatedBackward(Arguments):
    """The gradients of gate and up."""

    dgate: Written
    dup: Written
    dy: Read
    gate: Read
    up: Read
    count: Size
    activation: Gate
    type: Float


@operation
class Rotate(Arguments):
    """Rotation of pairs of features by an angle."""

    y: Written
    x: Read
    cos: Read
    sin: Read
    batch: Size
    heads: Size
    positions: Size
    features: Size
    rotated: Size
    x_strides: Sizes3
    y_strides: Sizes3
    angle_stride: Size
    sign: Number
    type: Float
    is_interleaved: Flag


@operation
class Dropout(Arguments):
    """Each element times a factor, or 0 (dropout)."""

    y: Written
    x: Read
    count: Size
    key: Size
    threshold: Size
    factor: Number
    type: Float


@operation
class AttentionForward(Arguments):
    """softmax(scale q k^T) v of many queries."""

    y: Written
    q: Read
    k: Read
    v: Read
    log_sums: Written
    batch: Size
    heads: Size
    key_heads: Size
    queries: Size
    places: Size
    features: Size
    y_strides: Sizes3
    q_strides: Sizes3
    k_strides: Sizes3
    v_strides: Sizes3
    scale: Number
    is_causal: Flag


@operation
class AttentionBackward(Arguments):
    """The gradients of attention."""

    dq: Written
    dk: Written
    dv: Written
    q: Read
    k: Read
    v: Read
    y: Read
    dy: Read
    log_sums: Read
    batch: Size
    heads: Size
    key_heads: Size
    places: Size
    features: Size
    dq_strides: Sizes3
    dk_strides: Sizes3
    dv_strides: Sizes3
    q_strides: Sizes3
    k_strides: Sizes3
    v_strides: Sizes3
    y_strides: Sizes3
    dy_strides: Sizes3
    scale: Number
    is_causal: Flag
