//! The S3 store on real services and on imitations of bad ones.
#![cfg(feature = "s3")]

#[path = "../common/calls.rs"]
mod calls;

mod bad_services;
mod conformance;
mod faults;
mod imitation;
mod marks;
mod outages;
mod rights;

use calls::{bounded, create, denial, until_it_writes};
