//! Layout and widgets of `uncopy top`.

use super::rates::{Order, Rates, Row as Rate, truncate};
use crate::explain::describe;
use crate::explain::sites::Site;
use crate::processes::State;
use crate::table::bytes;
use crate::{os, ps};
use ratatui_core::layout::{Constraint, Layout, Rect};
use ratatui_core::style::{Modifier, Style};
use ratatui_core::terminal::Frame;
use ratatui_core::text::Line;
use ratatui_widgets::block::Block;
use ratatui_widgets::borders::Borders;
use ratatui_widgets::paragraph::{Paragraph, Wrap};
use ratatui_widgets::sparkline::Sparkline;
use ratatui_widgets::table::{Cell, Row, Table, TableState};
use uncopy_core::ledger::Field;
use uncopy_profile::format::one_line;

/// Minimum width of the terminal for the USER column.
const MIN_USER_WIDTH: u16 = 96;
/// Lines of details on the selected process.
const DETAIL_LINES: u16 = 10;
/// Columns of the selected process's history.
const HISTORY_COLUMNS: u16 = 24;

/// Call sites of the selected process.
pub enum SiteInfo {
    Sites(Vec<Site>),
    /// No ledger has the process.
    NotRecorded,
    /// The process belongs to another user.
    OtherUser,
}

/// State that is drawn.
pub struct Ui<'a> {
    pub rates: &'a Rates,
    /// Index of the selected row.
    pub selected: usize,
    /// Column by which the rows are sorted.
    pub order: Order,
    /// Whether updates are paused.
    pub is_paused: bool,
    /// Seconds between two refreshes.
    pub interval_s: u32,
    pub site_info: &'a SiteInfo,
}

impl Ui<'_> {
    pub fn draw(&self, frame: &mut Frame<'_>) {
        let rows = &self.rates.rows;
        let detail =
            if frame.area().height > 2 * DETAIL_LINES && !rows.is_empty() { DETAIL_LINES } else { 0 };
        let areas = Layout::vertical([
            Constraint::Length(2),
            Constraint::Min(2),
            Constraint::Length(detail),
            Constraint::Length(1),
        ]);
        let [head, list, below, keys] = areas.areas(frame.area());
        frame.render_widget(Paragraph::new(self.head()), head);
        if rows.is_empty() {
            let text = "No such process runs under uncopy. Start one with: uncopy run -- CMD";
            frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), list);
        } else {
            self.list(frame, list);
        }
        if let Some(row) = rows.get(self.selected).filter(|_| detail > 0) {
            self.detail(frame, below, row);
        }
        let help = " q quit   ↑ ↓ select   < > sort   space pause   + - interval";
        frame.render_widget(Paragraph::new(help).style(Style::new().add_modifier(Modifier::DIM)), keys);
    }

    fn head(&self) -> Vec<Line<'_>> {
        let rows = &self.rates.rows;
        let sum = |value: fn(&Rate) -> f64| rows.iter().map(value).sum::<f64>();
        let count = match rows.len() {
            1 => "1 process".to_owned(),
            count => format!("{count} processes"),
        };
        let paused = if self.is_paused { ", paused" } else { "" };
        let memory: u64 = rows.iter().map(|row| row.process.memory_bytes()).sum();
        vec![
            Line::from(format!("uncopy top: {count} under uncopy, every {} s{paused}", self.interval_s)),
            Line::from(format!(
                "elided {}/s, copied {}/s, {:.0} faults/s, {} memory, {:.0} % CPU, saves {:.0} %",
                short_bytes(sum(|row| row.elided)),
                short_bytes(sum(|row| row.copied)),
                sum(|row| row.faults),
                bytes(memory),
                100.0 * sum(|row| row.cpu),
                100.0 * rows.iter().filter_map(Rate::saved_cpu).sum::<f64>(),
            )),
        ]
    }

    fn list(&self, frame: &mut Frame<'_>, area: Rect) {
        let is_wide = area.width >= MIN_USER_WIDTH;
        let user = is_wide.then_some(("USER", 9, None));
        let columns = [
            Some(("    PID", 7, Some(Order::Pid))),
            user,
            Some(("STATE", 6, None)),
            Some((" ELIDED/s", 9, Some(Order::Elided))),
            Some((" COPIED/s", 9, Some(Order::Copied))),
            Some(("FAULTS/s", 8, Some(Order::Faults))),
            Some(("   MEMORY", 9, Some(Order::Memory))),
            Some(("  CPU%", 6, Some(Order::Cpu))),
            Some(("SAVES%", 6, Some(Order::Saves))),
        ];
        let columns: Vec<_> = columns.into_iter().flatten().collect();
        let head = columns.iter().map(|(name, _, order)| {
            let is_order = *order == Some(self.order);
            let marks = if is_order { Modifier::REVERSED } else { Modifier::empty() };
            Cell::from(*name).style(Style::new().add_modifier(marks))
        });
        let head = Row::new(head.chain([Cell::from("COMMAND")]));
        let widths = columns.iter().map(|(_, width, _)| Constraint::Length(*width));
        let rows = self.rates.rows.iter().map(|row| {
            let process = &row.process;
            let user = os::user_name(process.user).unwrap_or_else(|| process.user.to_string());
            let mut cells = vec![format!("{:>7}", process.pid)];
            cells.extend(is_wide.then_some(user));
            cells.extend([
                process.state().name().to_owned(),
                format!("{:>9}", short_bytes(row.elided)),
                format!("{:>9}", short_bytes(row.copied)),
                format!("{:>8.0}", row.faults),
                format!("{:>9}", short_bytes(process.memory_bytes() as f64)),
                format!("{:>6.1}", 100.0 * row.cpu),
                row.saved_cpu()
                    .map_or_else(|| format!("{:>6}", "?"), |saved| format!("{:>6.1}", 100.0 * saved)),
                process.name.clone(),
            ]);
            Row::new(cells)
        });
        let table = Table::new(rows, widths.chain([Constraint::Min(4)]))
            .header(head.style(Style::new().add_modifier(Modifier::BOLD)))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        let mut state = TableState::new().with_selected(self.selected);
        frame.render_stateful_widget(table, area, &mut state);
    }

    fn detail(&self, frame: &mut Frame<'_>, area: Rect, row: &Rate) {
        let process = &row.process;
        let up = process.up_s.map(|up_s| format!(", up {}", ps::format_age(up_s))).unwrap_or_default();
        let title = format!(" {} ({}): {}{up} ", process.name, process.pid, process.state().name());
        let block = Block::new().borders(Borders::TOP).title(title);
        let inner = block.inner(area);
        frame.render_widget(block, area);
        let [text, history] =
            Layout::horizontal([Constraint::Min(20), Constraint::Length(HISTORY_COLUMNS)]).areas(inner);
        frame.render_widget(Paragraph::new(self.detail_lines(row, text)), text);
        let begin = row.history.len().saturating_sub(usize::from(HISTORY_COLUMNS));
        let block = Block::new().title("elided/s");
        frame.render_widget(Sparkline::default().block(block).data(&row.history[begin..]), history);
    }

    /// Returns the measurements and the call sites of the selected process.
    fn detail_lines(&self, row: &Rate, area: Rect) -> Vec<Line<'static>> {
        let process = &row.process;
        let mut lines: Vec<Line<'static>> = Vec::new();
        if process.state() == State::Plain {
            let reason = process.snapshot.reason.as_deref().unwrap_or_default();
            lines.push(Line::from(format!("cannot elide: {}", reason.escape_default())));
        }
        lines.extend(process.snapshot.trials.lines().map(Line::from));
        match self.site_info {
            SiteInfo::Sites(sites) => {
                let head = format!("{:>9} {:>9} {:<15} {}", "ELIDED", "COPIED", "STATE", "SITE");
                lines.push(Line::styled(head, Style::new().add_modifier(Modifier::BOLD)));
                lines.extend(sites.iter().take(area.height.into()).map(|site| {
                    let get = |field| site.entry.get(field) as f64;
                    let name = one_line(&site.name());
                    Line::from(format!(
                        "{:>9} {:>9} {:<15} {name}",
                        short_bytes(get(Field::ElidedBytes)),
                        short_bytes(get(Field::CopiedBytes)),
                        describe::state(&site.entry),
                    ))
                }));
            }
            SiteInfo::NotRecorded => {
                lines.push(Line::from("call sites: start it with uncopy run --explain - -- CMD"))
            }
            SiteInfo::OtherUser => lines.push(Line::from("call sites: only its own user can see them")),
        }
        lines
    }
}

/// Formats a number of bytes in at most nine columns.
fn short_bytes(count: f64) -> String {
    bytes(truncate(count))
}

#[cfg(test)]
mod tests {
    use super::super::rates::tests::row;
    use super::*;
    use ratatui_core::backend::TestBackend;
    use ratatui_core::terminal::Terminal;

    fn drawn(width: u16, height: u16, count: u32) -> Vec<String> {
        let mut rates = Rates::new(Vec::new());
        rates.rows = (1..=count)
            .map(|pid| row(4_194_000 + pid, "redis-server", pid, (pid % 2 == 0).then_some(0.5)))
            .collect();
        let ui = Ui {
            rates: &rates,
            selected: count.saturating_sub(1) as usize,
            order: Order::Elided,
            is_paused: false,
            interval_s: 1,
            site_info: &SiteInfo::NotRecorded,
        };
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("in memory");
        terminal.draw(|frame| ui.draw(frame)).expect("in memory");
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(line).collect()
    }

    #[test]
    fn a_terminal_of_80_columns_and_24_lines_shows_everything() {
        let lines = drawn(80, 24, 10);
        let text = lines.join("\n");
        assert!(lines[0].starts_with("uncopy top: 10 processes"), "{text}");
        assert!(lines[1].contains("elided 55.0 MiB/s"), "{text}");
        assert!(lines[2].contains("SAVES% COMMAND"), "{text}");
        assert!(lines[3].starts_with("4194001 active   1.0 MiB"), "{text}");
        assert!(lines[3].contains("     ? redis-server"), "{text}");
        assert!(lines[12].starts_with("4194010") && lines[12].contains("  50.0 redis-server"), "{text}");
        assert!(text.contains("redis-server (4194010): active, up 2 min"), "{text}");
        assert!(text.contains("saves 50.0 %") && text.contains("uncopy run --explain"), "{text}");
        assert!(lines[23].contains("q quit"), "{text}");
    }

    #[test]
    fn wide_terminals_have_users_and_small_ones_no_details() {
        assert!(drawn(120, 24, 1)[2].contains("USER"));
        let small = drawn(72, 6, 40).join("\n");
        assert!(
            small.contains("4194040") && !small.contains("up 2 min"),
            "the selected one is shown\n{small}"
        );
        assert!(drawn(1, 1, 3).concat().len() <= 4);
        assert!(drawn(80, 24, 0).join("\n").contains("uncopy run -- CMD"));
    }
}
