"""What kernels of several families share: matrix products, scalar functions, tiles in registers, cursors."""
