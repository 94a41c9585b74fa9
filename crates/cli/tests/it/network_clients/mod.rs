//! The clients that people use, inside, each with the one host allowed that it is to visit: against servers and
//! package indexes on this host's loopback.

mod authority;
mod backends;
mod packages;
mod programs;
mod site;
mod transfers;
