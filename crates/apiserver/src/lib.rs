//! The Kubernetes API over a store: a service first, a TLS listener second.
//!
//! ```text
//!   request ─► who? (auth) ─► what? (path, query, resource) ─► may they? (auth)
//!                                                                  │
//!        ┌──────────────────────────── rest: one generic handler ◄─┘
//!        │  decode ─► default ─► admission ─► validate ─► own (managed fields)
//!        ▼                                                   │
//!   get, list, watch ◄────────────── store ◄─────────────────┘
//! ```
//!
//! Guarantees: built-in and custom kinds go through the same handler, by what `resource::ResourceType` says of them;
//! what is acknowledged is stored; nothing is answered that the store has not committed.
//!
//! Assumes: one process owns the store.

mod admission;
pub mod auth;
pub mod body;
mod builtin;
pub mod certificates;
mod controllers;
pub mod core;
mod custom;
mod digest;
mod discovery;
mod heap;
mod negotiate;
mod openapi;
mod path;
mod query;
mod quota;
mod resource;
mod respond;
mod rest;
mod select;
pub mod serve;
pub mod server;
pub mod service;
mod strategy;
pub mod streams;
mod wire;
