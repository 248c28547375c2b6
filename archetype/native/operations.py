"""The arguments of each native operation: the C++ struct of the same name declares and explains the fields.

The order is the order of `operations` in kernels.cpp.
"""

from archetype.native.arguments import operation

Product = operation("Product")
BatchedProduct = operation("BatchedProduct")
Attend = operation("Attend")
JoinParts = operation("JoinParts")
Append = operation("Append")
AppendScaled = operation("AppendScaled")
CopyPlaces = operation("CopyPlaces")
Pointwise = operation("Pointwise")
Rows = operation("Rows")
RmsNormBackward = operation("RmsNormBackward")
Embedding = operation("Embedding")
QuantizedEmbedding = operation("QuantizedEmbedding")
UnpackedRows = operation("UnpackedRows")
Topk = operation("Topk")
Gather = operation("Gather")
Gated = operation("Gated")
GatedBackward = operation("GatedBackward")
Rotate = operation("Rotate")
Dropout = operation("Dropout")
AttentionForward = operation("AttentionForward")
AttentionBackward = operation("AttentionBackward")
