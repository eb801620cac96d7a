"""The reference's independent derivations as operations of an adapter."""
