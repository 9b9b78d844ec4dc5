mod lease;
mod reaping;
mod stream;

pub use lease::Lease;
pub(super) use reaping::Reaping;
pub use stream::Stream;
