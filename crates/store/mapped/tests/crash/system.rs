//! A simulated program with its log, chunks and files, its digester, and recoveries after its death.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use uncopy_mapped::chunks::load;
use uncopy_mapped::digest::{Digester, Limits};
use uncopy_mapped::layout::{Superblock, Unreadable};
use uncopy_mapped::log::{EmptyLog, Log};
use uncopy_mapped::plan::FilePlan;
use uncopy_mapped::reader::Reader;
use uncopy_mapped::recovery::Recovery;

use crate::files::{Promise, SimFile};
use crate::memory::{Cells, Kept, Mutation, Random, Region, Sim, Site};
use crate::program::Writer;

pub const FILES: usize = 3;
pub const ORIGINS: [u64; FILES] = [0, 0, 5 << 30];
pub const ENTRIES: u32 = 5;
const RING_BYTES: usize = 8 << 10;
pub const CHUNKS: usize = 5;
pub const CHUNK_BYTES: usize = 512;
pub const MAX_FILE_BYTES: usize = 3000;

pub const fn superblock(log: u64) -> Superblock {
    let len_bytes = Superblock::min_len_bytes(ENTRIES) - 4096 + RING_BYTES as u64;
    Superblock { log, machine: 1, len_bytes, entries: ENTRIES }
}

pub const LOG_BYTES: usize = superblock(1).len_bytes as usize;
pub const MEMORY_BYTES: usize = LOG_BYTES + CHUNKS * CHUNK_BYTES;

/// Kinds of crashes that are tried.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Crashes {
    /// Kills and power losses.
    All,
    Kills,
    /// Every subset of the pending lines, up to a bound.
    Enumerated,
}

/// State that all simulated machines of a search share.
pub struct Search {
    pub mutation: Option<Mutation>,
    pub sites: Rc<RefCell<BTreeSet<Site>>>,
    pub crashes: Crashes,
    /// Whether all writes have the same length.
    pub is_uniform: bool,
    /// Number of crash states checked.
    pub states: Cell<usize>,
    pub random: RefCell<Random>,
    pub error: RefCell<Option<String>>,
}

impl Search {
    pub fn new(seed: u64, mutation: Option<Mutation>, crashes: Crashes) -> Rc<Self> {
        Rc::new(Self {
            mutation,
            sites: Rc::default(),
            crashes,
            is_uniform: seed % 4 == 3,
            states: Cell::new(0),
            random: RefCell::new(Random::new(seed)),
            error: RefCell::new(None),
        })
    }

    pub fn below(&self, limit: usize) -> usize {
        self.random.borrow_mut().below(limit)
    }

    pub fn one_in(&self, chances: usize) -> bool {
        self.random.borrow_mut().one_in(chances)
    }

    pub fn bytes(&self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.random.borrow_mut().word() as u8 | 1).collect()
    }
}

/// Contents of a machine.
#[derive(Clone)]
struct World {
    cells: Cells,
    files: Vec<SimFile>,
    boot: u64,
    /// Whether operations that returned must be there, not only those that survive power loss.
    is_kill: bool,
}

/// A machine with everything that runs on it.
pub struct Machine {
    pub search: Rc<Search>,
    pub memory: Region,
    pub chunks: Vec<Region>,
    pub files: RefCell<Vec<SimFile>>,
    pub promises: RefCell<Vec<Promise>>,
    boot: u64,
    is_kill: Cell<bool>,
    pub writer: RefCell<Option<Writer>>,
    pub digester: RefCell<Option<Digester<Region>>>,
    /// File that the log is giving up, which the program does not touch meanwhile.
    pub leaving: Cell<Option<usize>>,
    /// Whether the log was being made: it may be missing.
    is_creating: Cell<bool>,
    /// Number of crashes before this machine's.
    depth: usize,
    nested: Cell<usize>,
}

impl Machine {
    fn new(search: &Rc<Search>, world: World, promises: Vec<Promise>, depth: usize) -> Rc<Self> {
        let sim = Sim::new(world.cells, search.mutation, Rc::clone(&search.sites));
        let region = |base, len| Region { sim: Rc::clone(&sim), base, len, thread: 0 };
        let machine = Rc::new(Self {
            search: Rc::clone(search),
            memory: region(0, LOG_BYTES),
            chunks: (0..CHUNKS).map(|chunk| region(LOG_BYTES + chunk * CHUNK_BYTES, CHUNK_BYTES)).collect(),
            files: RefCell::new(world.files),
            promises: RefCell::new(promises),
            boot: world.boot,
            is_kill: Cell::new(world.is_kill),
            writer: RefCell::new(None),
            digester: RefCell::new(None),
            leaving: Cell::new(None),
            is_creating: Cell::new(false),
            depth,
            nested: Cell::new(0),
        });
        let weak = Rc::downgrade(&machine);
        sim.set_hook(Some(Rc::new(move || {
            if let Some(machine) = weak.upgrade() {
                machine.on_step();
            }
        })));
        machine
    }

    pub fn failed(&self) -> bool {
        self.search.error.borrow().is_some()
    }

    pub fn fail(&self, why: String) {
        self.search.error.borrow_mut().get_or_insert(why);
    }

    pub fn note(&self, result: Result<(), String>) {
        if let Err(why) = result {
            self.fail(why);
        }
    }

    /// Checks what a crash now would leave, and lets the other role run.
    fn on_step(&self) {
        if self.failed() || self.depth > 1 {
            return;
        }
        if self.search.crashes == Crashes::Enumerated {
            if self.depth == 0 {
                self.check_subsets();
            }
            return;
        }
        let chances = match (self.depth, self.is_creating.get()) {
            (_, true) => 1,
            (0, _) => 3,
            _ => 24,
        };
        if self.search.one_in(chances) {
            let world = self.crashed();
            self.note(self.check(world));
        }
        // Above all right after the store of a word, which tells the other role something.
        let chances = if self.memory.sim.is_after_word.take() { 3 } else { 16 };
        if self.nested.get() == 0 && self.search.one_in(chances) {
            self.nested.set(1);
            if self.writer.try_borrow_mut().is_ok_and(|writer| writer.is_some()) {
                (0..=self.search.below(8)).for_each(|_| self.writer_step());
            } else if self.digester.try_borrow_mut().is_ok_and(|digester| digester.is_some()) {
                self.digester_step();
            }
            self.nested.set(0);
        }
    }

    /// Checks every subset of the pending lines, if they are few, and some otherwise.
    fn check_subsets(&self) {
        let lines = self.memory.sim.cells.borrow().pending_lines().len();
        let is_small = lines <= 7;
        for bits in 0..if is_small { 1 << lines } else { 128 } {
            let bits = if is_small { bits } else { self.search.random.borrow_mut().word() };
            let world = self.after_power_loss(&Kept::Lines(bits));
            self.note(self.check(world));
        }
        let killed = self.killed();
        self.note(self.check(killed));
    }

    fn killed(&self) -> World {
        let (cells, files) = (self.memory.sim.cells.borrow().after_kill(), self.files.borrow().clone());
        World { cells, files, boot: self.boot, is_kill: self.is_kill.get() }
    }

    fn after_power_loss(&self, kept: &Kept) -> World {
        let random = &mut self.search.random.borrow_mut();
        let cells = self.memory.sim.cells.borrow().after_power_loss(kept, random);
        let files = self.files.borrow().iter().map(|file| file.after_power_loss(random)).collect();
        World { cells, files, boot: self.boot + 1, is_kill: false }
    }

    fn crashed(&self) -> World {
        let kind = self.search.below(7);
        if kind < 2 || self.search.crashes == Crashes::Kills {
            return self.killed();
        }
        self.after_power_loss(&match kind {
            2 => Kept::AnyWords,
            3 => Kept::FirstWords(self.search.one_in(2)),
            4 => Kept::Lines([0, u64::MAX][self.search.below(2)]),
            _ => Kept::AnyLines,
        })
    }

    /// Recovers a crashed machine, and checks its files.
    fn check(&self, world: World) -> Result<(), String> {
        self.search.states.set(self.search.states.get() + 1);
        let promises = self.promises.borrow().clone();
        let machine = Self::new(&self.search, world, promises, self.depth + 1);
        machine.is_creating.set(self.is_creating.get());
        match Reader::open(machine.memory.clone()) {
            Err(Unreadable::Foreign | Unreadable::Superblock) if self.is_creating.get() => Ok(()),
            _ => machine.recover().map(drop),
        }
    }

    pub fn carry_out(&self, plans: &[FilePlan]) -> Result<(), String> {
        let numbers = || plans.iter().map(|plan| plan.identity.inode as usize);
        if let Some(number) = numbers().find(|number| *number >= FILES) {
            return Err(format!("a plan for file {number}"));
        }
        for (plan, number) in plans.iter().zip(numbers()) {
            let resize = |size| {
                self.files.borrow_mut()[number].resize(size)?;
                self.memory.sim.step();
                Ok::<(), String>(())
            };
            plan.shrink_to.map_or(Ok(()), resize)?;
            for write in &plan.writes {
                let mut offset = write.offset;
                for extent in &write.sources {
                    let mut bytes = vec![0; extent.len_bytes];
                    if !load(&self.memory, &self.chunks[..], extent.source, &mut bytes) {
                        return Err(format!("no {extent:?}"));
                    }
                    self.files.borrow_mut()[number].write(offset, &bytes)?;
                    self.memory.sim.step();
                    offset += bytes.len() as u64;
                }
            }
            plan.grow_to.map_or(Ok(()), resize)?;
        }
        for number in numbers() {
            self.files.borrow_mut()[number].sync();
            self.memory.sim.step();
        }
        Ok(())
    }

    pub fn limits(&self) -> Limits {
        Limits { extents: 1 + self.search.below(30), bytes: 1 + self.search.below(RING_BYTES) as u64 }
    }

    /// Recovers the log, and checks the files.
    fn recover(&self) -> Result<EmptyLog<Region>, String> {
        let chunks = &self.chunks[..];
        let mut recovery =
            Recovery::open(self.memory.clone(), chunks, self.boot).map_err(|why| why.to_string())?;
        // Each batch has at least a line.
        for _ in 0..=RING_BYTES / 64 {
            let batch = recovery.plan(chunks, self.limits()).map_err(|why| why.to_string())?;
            let Some(batch) = batch else { break };
            self.carry_out(&batch.files)?;
            if !recovery.retire(&batch) {
                return Err("a batch was not retired".into());
            }
        }
        let log = recovery.finish().map_err(|_| "records are left")?;
        self.is_creating.set(false);
        self.memory.sim.step();
        for (number, (file, promise)) in self.files.borrow().iter().zip(&*self.promises.borrow()).enumerate()
        {
            let required = if self.is_kill.get() { promise.returned } else { 0 };
            promise.check(&file.cached, required).map_err(|why| format!("file {number}: {why}"))?;
        }
        Ok(log)
    }

    fn digester_step(&self) {
        let Ok(mut digester) = self.digester.try_borrow_mut() else { return };
        let Some(digester) = digester.as_mut() else { return };
        let result = digester.plan(&self.chunks[..], self.limits());
        let result = result.map_err(|why| why.to_string()).and_then(|batch| {
            self.carry_out(&batch.files)?;
            if self.search.below(4) == 0 {
                digester.heartbeat(1);
            }
            if digester.retire(&batch, 2) { Ok(()) } else { Err("a batch was not retired".into()) }
        });
        self.note(result);
    }

    /// Attaches a writer and a digester, and lets them run.
    fn run(&self, log: EmptyLog<Region>, steps: usize) {
        self.is_kill.set(true);
        let log = Log::attach(log, self.boot, 1);
        match Digester::open(Region { thread: 1, ..self.memory.clone() }) {
            Ok(digester) => *self.digester.borrow_mut() = Some(digester),
            Err(why) => self.fail(why.to_string()),
        }
        *self.writer.borrow_mut() = Some(Writer::new(log));
        for _ in 0..steps {
            if self.failed() {
                return;
            }
            match self.search.below(24) {
                0 | 1 => self.digester_step(),
                2 => self.digest_file(),
                _ => self.writer_step(),
            }
        }
    }

    /// Makes a log in whatever the memory holds.
    fn create(&self) -> Result<EmptyLog<Region>, String> {
        self.is_creating.set(true);
        let log = EmptyLog::create(self.memory.clone(), &superblock(1 + self.search.below(1 << 30) as u64));
        self.is_creating.set(false);
        self.memory.sim.step();
        log.ok_or_else(|| "no log".into())
    }
}

/// Returns the memory of a killed program.
pub fn killed_memory(seed: u64) -> Cells {
    let search = Search::new(seed, None, Crashes::Kills);
    let files: Vec<SimFile> = ORIGINS.into_iter().map(|origin| SimFile::new(origin, Vec::new())).collect();
    let world = World { cells: Cells::new(MEMORY_BYTES), files, boot: 1, is_kill: false };
    let machine = Machine::new(&search, world, vec![Promise::default(); FILES], 0);
    machine.memory.sim.set_hook(None);
    let log = machine.create().expect("a log");
    machine.run(log, 60);
    machine.memory.sim.cells.borrow().after_kill()
}

/// Simulates a log through several crashes.
pub fn live(search: &Rc<Search>, lives: usize, max_steps: usize) -> Result<(), String> {
    let promises: Vec<Promise> =
        (0..FILES).map(|_| Promise { base: search.bytes(search.below(200)), ..Promise::default() }).collect();
    let files = ORIGINS.into_iter().zip(&promises);
    let files = files.map(|(origin, promise)| SimFile::new(origin, promise.base.clone())).collect();
    let mut cells = Cells::new(MEMORY_BYTES);
    if search.one_in(2) {
        // A used file: its bytes are no log, and no zeroes.
        (0..MEMORY_BYTES).for_each(|at| cells.damage(at, at as u8));
    }
    let world = World { cells, files, boot: 1, is_kill: false };
    let mut machine = Machine::new(search, world, promises, 0);
    let mut log = machine.create()?;
    for _ in 0..lives {
        let steps = 1 + search.below(max_steps);
        machine.run(log, steps);
        let world = machine.crashed();
        let promises = machine.promises.borrow().clone();
        machine.memory.sim.set_hook(None);
        machine = Machine::new(search, world, promises, 0);
        log = machine.recover()?;
        search.states.set(search.states.get() + 1);
        for number in 0..FILES {
            let bytes = machine.files.borrow()[number].cached.clone();
            machine.promises.borrow_mut()[number] = Promise { base: bytes, ..Promise::default() };
            if search.one_in(2) {
                machine.change_outside(number);
            }
        }
        if search.one_in(2) {
            log = machine.create()?;
        }
        if let Some(why) = search.error.borrow().clone() {
            return Err(why);
        }
    }
    Ok(())
}
