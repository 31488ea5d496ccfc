//! Names of services and pods, and the server that tells them.
//!
//! Guarantees: a name that has no records of the type asked for is told from a name that is not there (an empty answer
//! from NXDOMAIN), also where a name exists only because of longer ones; a change is seen by the next question; the
//! server answers the pods and the machine of its own instance and nobody else.
//!
//! ```text
//!   Names ── set, remove ──► Table ◄── look up ── Server ──► upstream, for what is not under the domain
//! ```

mod records;
mod server;
mod table;

pub use records::{HeadlessEndpoint, NamedPort, ServiceAddresses, ServiceNames};
pub use server::{DnsConfig, DnsServer};
pub use table::Names;
