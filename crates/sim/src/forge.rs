//! A forge: bare repositories on this machine, and the payloads that a forge would send.
