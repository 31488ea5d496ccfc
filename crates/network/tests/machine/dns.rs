//! The name server, asked from pods and from the machine.
