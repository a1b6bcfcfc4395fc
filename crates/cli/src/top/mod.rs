//! `uncopy top`: shows the processes under uncopy, live.

pub mod args;
mod rates;
mod sites;
mod terminal;
mod ui;

use crate::live::shared_memory;
use crate::os;
use crate::output::{self, EXIT_FAILURE, EXIT_OK, Reason};
use crate::processes::Selector;
use crate::sweep::sweep;
use clap::ArgMatches;
use ratatui_termion::termion::event::Key;
use rates::{Order, Rates};
use sites::Sites;
use std::io;
use std::time::{Duration, Instant};
use terminal::{Input, Screen};
use ui::{SiteInfo, Ui};

/// Maximum refresh interval, seconds.
const MAX_INTERVAL_S: u32 = 3600;

/// Shows the processes until a key or a signal ends the command.
pub fn main(matches: &ArgMatches) -> u8 {
    let wanted = match Selector::parse_all(matches, args::PROCESSES) {
        Ok(wanted) => wanted,
        Err(status) => return status,
    };
    sweep(shared_memory());
    let screen = match Screen::acquire() {
        Ok(Some(screen)) => screen,
        Ok(None) => {
            output::print_message("top needs a terminal; without one: uncopy ps");
            return EXIT_FAILURE;
        }
        Err(error) => return failed(&error),
    };
    let interval_s = matches.get_one::<u32>(args::INTERVAL).copied().unwrap_or(1);
    let mut top = Top {
        screen,
        rates: Rates::new(wanted),
        sites: Sites::new(),
        site_info: SiteInfo::NotRecorded,
        selected: None,
        order: Order::Elided,
        is_paused: false,
        interval_s,
    };
    let result = top.run();
    // Restores the terminal before anything is written to it.
    drop(top);
    match result {
        Ok(()) => EXIT_OK,
        // EIO: the terminal is gone.
        Err(error) if error.raw_os_error() == Some(libc::EIO) => EXIT_OK,
        Err(error) => failed(&error),
    }
}

fn failed(error: &io::Error) -> u8 {
    output::print_message(format_args!("cannot use the terminal: {}", Reason(error)));
    EXIT_FAILURE
}

struct Top {
    screen: Screen,
    rates: Rates,
    sites: Sites,
    site_info: SiteInfo,
    /// Pid of the selected process; its index changes with the order of the list.
    selected: Option<u32>,
    order: Order,
    is_paused: bool,
    interval_s: u32,
}

impl Top {
    fn run(&mut self) -> io::Result<()> {
        loop {
            if !self.is_paused {
                self.rates.refresh(self.order);
            }
            self.update_selected();
            let deadline = Instant::now() + Duration::from_secs(self.interval_s.into());
            self.draw()?;
            while let Some(input) = self.screen.next(deadline)? {
                match input {
                    Input::Key(key) if self.handle_key(key)? => return Ok(()),
                    Input::Key(_) | Input::Redraw => self.draw()?,
                    Input::End => return Ok(()),
                }
            }
        }
    }

    /// Handles a key. Returns whether the key ends the command.
    fn handle_key(&mut self, key: Key) -> io::Result<bool> {
        match key {
            Key::Char('q') | Key::Esc | Key::Ctrl('c') => return Ok(true),
            Key::Ctrl('z') => self.screen.suspend()?,
            Key::Up | Key::Char('k') => self.select(-1),
            Key::Down | Key::Char('j') => self.select(1),
            Key::Char('<') | Key::Left => self.sort(-1),
            Key::Char('>') | Key::Right => self.sort(1),
            Key::Char(' ') => self.is_paused = !self.is_paused,
            Key::Char('+') => self.interval_s = self.interval_s.saturating_mul(2).min(MAX_INTERVAL_S),
            Key::Char('-') => self.interval_s = (self.interval_s / 2).max(1),
            _ => {}
        }
        Ok(false)
    }

    fn index(&self) -> usize {
        let is_it = |pid| self.rates.rows.iter().position(|row| row.process.pid == pid);
        self.selected.and_then(is_it).unwrap_or(0)
    }

    fn select(&mut self, steps: isize) {
        let last = self.rates.rows.len().saturating_sub(1);
        let index = self.index().saturating_add_signed(steps).min(last);
        self.selected = self.rates.rows.get(index).map(|row| row.process.pid);
        self.update_selected();
    }

    fn sort(&mut self, steps: isize) {
        self.order = self.order.shifted(steps);
        self.rates.sort(self.order);
    }

    fn update_selected(&mut self) {
        let Some(row) = self.rates.rows.get(self.index()) else { return };
        self.site_info = if row.process.user != os::effective_user_id() {
            SiteInfo::OtherUser
        } else {
            self.sites.sites_of(row.process.pid).map_or(SiteInfo::NotRecorded, SiteInfo::Sites)
        };
    }

    fn draw(&mut self) -> io::Result<()> {
        let ui = Ui {
            rates: &self.rates,
            selected: self.index(),
            order: self.order,
            is_paused: self.is_paused,
            interval_s: self.interval_s,
            site_info: &self.site_info,
        };
        self.screen.draw(|frame| ui.draw(frame))
    }
}
