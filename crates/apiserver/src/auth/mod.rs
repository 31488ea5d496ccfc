//! Who is asking, and what they may do.
//!
//! Guarantees: nobody is believed without proof: a certificate of the cluster's authority, or a token that this server
//! has issued or was given at its start; whoever proves nothing may look at the server's health and no more. What a
//! user may do is decided by RBAC objects alone, with the messages of a Kubernetes API server. No token and no key is
//! ever printed.
//! Assumes: the index of roles is told of every change of the four RBAC kinds, in the order of their revisions.
//!
//! ```text
//!   certificate ┐
//!   token       ├─► Authenticator ─► User ─► impersonation ─► User ─┐
//!   nothing     ┘                                                   ├─► RoleIndex ─► yes, or 403
//!   method and path ─────────────────────────────► Action ──────────┘      ▲
//!                     roles and bindings, as they change ──────────────────┘
//! ```

pub mod action;
pub mod authentication;
pub mod certificate;
mod gate;
pub mod impersonation;
pub mod issuer_discovery;
pub mod rbac;
pub mod review;
pub mod token;
pub mod user;

pub use action::{Action, ResourceAction};
pub use authentication::{Authenticated, Authenticator, Refusal};
pub use certificate::{ClientCertificate, ClientCertificates};
pub use gate::admit;
pub use rbac::RoleIndex;
pub use token::{Lookup, ServiceAccountTokens};
pub use user::{MASTERS, User};
