//! Host side, single-threaded: builds Linux walls in order, reads them back, starts the agent.
