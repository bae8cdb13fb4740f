//! Routers, sidecars and an application behind them, as real processes, over HTTP.

mod bad_input;
mod bodies;
mod client;
mod demo_commands;
mod failover;
mod load;
mod malformed_requests;
mod moving;
mod named;
mod rolling;
mod streams;
mod test_cluster;
