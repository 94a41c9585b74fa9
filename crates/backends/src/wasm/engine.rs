//! The virtual machine: how programs are compiled, what they may import, and the clock that interrupts
//! them. One for each way of compiling, made when it is first needed.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use wasmtime::component::Linker as ComponentLinker;
use wasmtime::{
    Config, Engine, InstanceAllocationStrategy, Linker, PoolingAllocationConfig, WasmFeatures,
};

use super::check::{MAX_MODULE_PARTS, MAX_TABLE_ENTRIES};
use super::state::StoreState;
use super::{preview1, preview2};

/// Interval of the epoch clock. The first tick interrupts a program for the first time, while its caller
/// waits.
const TICK_INTERVAL: Duration = Duration::from_millis(1);
/// Time slice of a program: ticks until its next interruption, which checks whether it may go on.
pub(super) const TIME_SLICE_TICKS: u64 = 5;
/// Ticks without a running program after which the clock stops.
const MAX_IDLE_TICKS: u32 = 200;
/// Stack for a program's own calls.
const WASM_STACK_BYTES: usize = 1 << 20;
/// The same with room for what the host does on it.
const WHOLE_STACK: usize = WASM_STACK_BYTES + (1 << 20);

/// Core instances, and tables, at once in one process. They reserve address space, not memory.
const MAX_INSTANCES: u32 = 4096;
/// Linear memories, component instances and stacks at once in one process.
const MAX_MEMORIES: u32 = 2048;
/// The largest memory of an instance, with a pool or without.
pub(super) const LARGEST_MEMORY: usize = 4 << 30;

/// What is added to the code of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum EngineMode {
    /// Nothing but what ends it.
    Plain,
    /// Its instructions are counted.
    Counted,
    /// Counted, and every number is the same on any machine.
    Fixed,
}

impl EngineMode {
    /// The one that a spec asks for.
    pub(super) fn of(deterministic: bool, fuel: Option<u64>) -> Self {
        match (deterministic, fuel) {
            (true, _) => Self::Fixed,
            (false, Some(_)) => Self::Counted,
            (false, None) => Self::Plain,
        }
    }

    pub(super) fn is_fuel_counted(self) -> bool {
        match self {
            Self::Plain => false,
            Self::Counted | Self::Fixed => true,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Counted => "counted",
            Self::Fixed => "fixed",
        }
    }
}

/// Where instances come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Supply {
    /// A pool that is mapped once: for many.
    Pool,
    /// Mapped for each: for one.
    Single,
}

/// One way of compiling, ready to be used.
pub(super) struct WasmMachine {
    pub engine: Engine,
    pub mode: EngineMode,
    pub core: Linker<StoreState>,
    pub component: ComponentLinker<StoreState>,
    ticker: Arc<Ticker>,
}

/// Every way of compiling, each made at most once.
pub(super) struct Machines {
    supply: Supply,
    made: [Mutex<Option<Arc<WasmMachine>>>; 3],
}

impl Machines {
    pub(super) fn new(supply: Supply) -> Self {
        Self { supply, made: Default::default() }
    }

    /// The machine of a mode; nothing where the processor or the system does not suit it, or does not
    /// just now.
    pub(super) fn get_or_create(&self, mode: EngineMode) -> Option<Arc<WasmMachine>> {
        let at = match mode {
            EngineMode::Plain => 0,
            EngineMode::Counted => 1,
            EngineMode::Fixed => 2,
        };
        let mut made = self.made[at].lock().unwrap_or_else(PoisonError::into_inner);
        if made.is_none() {
            *made = WasmMachine::new(mode, self.supply).ok().map(Arc::new);
        }
        made.clone()
    }
}

impl WasmMachine {
    fn new(mode: EngineMode, supply: Supply) -> wasmtime::Result<Self> {
        let pooled = Engine::new(&build_config(mode, supply));
        // A host that is short of address space still runs programs, one mapping at a time.
        let engine = pooled.or_else(|_| Engine::new(&build_config(mode, Supply::Single)))?;
        let core = preview1::build_linker(&engine)?;
        let component = preview2::build_linker(&engine)?;
        let ticker = Ticker::start(engine.clone())?;
        Ok(Self { engine, mode, core, component, ticker })
    }

    /// What compiled code depends on beside the program: version, settings, processor.
    pub(super) fn cache_key(&self) -> String {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        self.engine.precompile_compatibility_hash().hash(&mut hasher);
        format!("{}-{:016x}", self.mode.name(), hasher.finish())
    }

    /// Keeps the clock going while a program runs.
    pub(super) fn keep_ticking(&self) -> TickingGuard {
        self.ticker.change_running(1);
        TickingGuard(Arc::clone(&self.ticker))
    }
}

fn build_config(mode: EngineMode, supply: Supply) -> Config {
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .consume_fuel(mode.is_fuel_counted())
        .cranelift_nan_canonicalization(mode == EngineMode::Fixed)
        .wasm_features(WasmFeatures::RELAXED_SIMD, mode != EngineMode::Fixed)
        .max_wasm_stack(WASM_STACK_BYTES)
        .async_stack_size(WHOLE_STACK)
        .memory_init_cow(true)
        .generate_address_map(false)
        .wasm_backtrace_max_frames(None);
    if supply == Supply::Pool {
        config.allocation_strategy(InstanceAllocationStrategy::Pooling(build_pool_config()));
    }
    config
}

fn build_pool_config() -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_core_instances(MAX_INSTANCES)
        .total_component_instances(MAX_MEMORIES)
        .total_memories(MAX_MEMORIES)
        .total_tables(MAX_INSTANCES)
        .total_stacks(MAX_MEMORIES)
        .max_memory_size(LARGEST_MEMORY)
        .max_memories_per_module(MAX_MODULE_PARTS)
        .max_tables_per_module(MAX_MODULE_PARTS)
        .table_elements(usize::try_from(MAX_TABLE_ENTRIES).unwrap_or(usize::MAX))
        .max_core_instance_size(8 << 20)
        .max_component_instance_size(8 << 20)
        .max_unused_warm_slots(64)
        // Clearing a little by hand is cheaper than giving it back and faulting it in again.
        .linear_memory_keep_resident(64 << 10)
        .table_keep_resident(16 << 10)
        .async_stack_keep_resident(16 << 10);
    pool
}

/// Counts up while any program runs and for a while after, and rests while none does. It is woken only
/// from its rest: waking it for each of many short programs would cost more than they do.
struct Ticker {
    state: Mutex<Ticking>,
    wake: Condvar,
}

#[derive(Default)]
struct Ticking {
    running: usize,
    resting: bool,
}

/// One program that runs.
pub(super) struct TickingGuard(Arc<Ticker>);

impl Drop for TickingGuard {
    fn drop(&mut self) {
        self.0.change_running(-1);
    }
}

impl Ticker {
    /// Without it nothing would ever be interrupted: where it cannot be had there is no machine.
    fn start(engine: Engine) -> std::io::Result<Arc<Self>> {
        let ticker = Arc::new(Self { state: Mutex::default(), wake: Condvar::new() });
        let weak = Arc::downgrade(&ticker);
        std::thread::Builder::new()
            .name("wasm-clock".into())
            .stack_size(64 << 10)
            .spawn(move || run_ticker(&weak, &engine))?;
        Ok(ticker)
    }

    fn lock(&self) -> MutexGuard<'_, Ticking> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change_running(&self, change: isize) {
        let mut state = self.lock();
        state.running = state.running.saturating_add_signed(change);
        if change > 0 && state.resting {
            state.resting = false;
            self.wake.notify_one();
        }
    }

    /// Sleeps if no program runs. For a moment only, so that a machine that is gone takes its clock with it.
    fn rest_while_idle(&self) -> bool {
        let mut state = self.lock();
        if state.running > 0 {
            state.resting = false;
            return false;
        }
        state.resting = true;
        let _ = self.wake.wait_timeout(state, Duration::from_secs(1));
        true
    }
}

fn run_ticker(ticker: &Weak<Ticker>, engine: &Engine) {
    let mut idle = 0;
    while let Some(ticker) = ticker.upgrade() {
        let running = ticker.lock().running > 0;
        idle = if running { 0 } else { idle + 1 };
        if idle > MAX_IDLE_TICKS && ticker.rest_while_idle() {
            continue;
        }
        drop(ticker);
        std::thread::sleep(TICK_INTERVAL);
        engine.increment_epoch();
    }
}
