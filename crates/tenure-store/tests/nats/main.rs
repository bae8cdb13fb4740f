//! The NATS store on real servers, started by the tests.
#![cfg(feature = "nats")]

#[path = "../common/calls.rs"]
mod calls;

mod buckets;
mod conformance;
mod creds;
mod faults;
mod history;
mod limits;
mod members;
mod rights;
mod tls;

use calls::{bounded, create, denial, until_it_writes};
