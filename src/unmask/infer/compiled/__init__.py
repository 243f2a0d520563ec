"""Models for ONNX Runtime: compiled to fp32 or int8, and exported."""
