//! The gate: the same answers as the limiter's, in transactions of its own, for many callers at once.

mod smoke;
