//! The etcd store on real etcd servers, started by the tests.
#![cfg(feature = "etcd")]

mod suite;
