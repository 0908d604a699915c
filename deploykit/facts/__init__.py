"""What is true of a graph: tensors, nodes, shapes, and which tensors have an encoding."""
