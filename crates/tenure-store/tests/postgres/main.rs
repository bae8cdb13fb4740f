//! The PostgreSQL store on a real server: the conformance suite, and everything that can go wrong with a server.

mod conformance;
