"""The native driver: the forward operations in C++, by instruction set."""
