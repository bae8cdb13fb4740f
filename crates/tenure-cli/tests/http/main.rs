//! Routers, sidecars and an application behind them, as real processes, over HTTP.

mod bad_input;
mod bodies;
mod client;
mod killing;
mod load;
mod moving;
mod named;
mod rolling;
mod shown;
mod site;
mod streams;
mod wire;
