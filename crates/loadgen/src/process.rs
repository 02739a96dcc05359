//! CPU time, memory and writes of a process, from `/proc`.
//!
//! CPU time is user and system time of all threads, past ones included. The kernel gives it in
//! clock ticks, which is exact enough for runs of seconds.
//!
//! What the whole machine used tells whether figures were taken on a quiet one.

use std::{fs, path::Path, time::Duration};

use anyhow::Context;

/// What a process has used so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Usage {
    pub(crate) cpu: Duration,
    pub(crate) rss_kib: u64,
    /// Largest resident size since the process began or the peak was set back.
    pub(crate) peak_kib: u64,
    pub(crate) threads: u64,
    /// Bytes it caused to be written to storage; absent where `/proc` does not tell.
    pub(crate) written_bytes: Option<u64>,
    /// Times that threads which are still there were switched out.
    pub(crate) switches: u64,
    /// Calls of write and its kin, sockets included.
    pub(crate) write_calls: Option<u64>,
}

impl Usage {
    pub(crate) fn read(pid: u32) -> anyhow::Result<Self> {
        let read = |name: &str| {
            let path = format!("/proc/{pid}/{name}");
            fs::read_to_string(&path).with_context(|| format!("read {path}"))
        };
        let stat = read("stat")?;
        let status = read("status")?;
        let io = read("io").unwrap_or_default();
        Ok(Self {
            cpu: cpu_time(&stat, rustix::param::clock_ticks_per_second())
                .with_context(|| format!("understand /proc/{pid}/stat"))?,
            rss_kib: field(&status, "VmRSS:").unwrap_or(0),
            peak_kib: field(&status, "VmHWM:").unwrap_or(0),
            threads: field(&status, "Threads:").unwrap_or(0),
            written_bytes: field(&io, "write_bytes:"),
            switches: switches(pid).unwrap_or(0),
            write_calls: field(&io, "syscw:"),
        })
    }
}

fn switches(pid: u32) -> std::io::Result<u64> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end between the two.
        let status = fs::read_to_string(task?.path().join("status")).unwrap_or_default();
        sum += field(&status, "voluntary_ctxt_switches:").unwrap_or(0);
        sum += field(&status, "nonvoluntary_ctxt_switches:").unwrap_or(0);
    }
    Ok(sum)
}

/// CPU time of one thread, by its directory in `/proc`.
pub(crate) fn task_cpu(task: &Path) -> anyhow::Result<Duration> {
    let path = task.join("stat");
    let stat = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    cpu_time(&stat, rustix::param::clock_ticks_per_second())
        .with_context(|| format!("understand {}", path.display()))
}

/// CPU time that all processes together have used so far, interrupts included.
pub(crate) fn machine_cpu() -> anyhow::Result<Duration> {
    let stat = fs::read_to_string("/proc/stat").context("read /proc/stat")?;
    busy_time(&stat, rustix::param::clock_ticks_per_second()).context("understand /proc/stat")
}

/// User, nice and system time, then idle and waiting, which are none, then interrupts.
fn busy_time(stat: &str, ticks_per_second: u64) -> Option<Duration> {
    let mut fields = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace();
    let mut sum = |count: usize| -> Option<u64> {
        let taken = fields.by_ref().take(count);
        taken.map(|field| field.parse::<u64>().ok()).sum()
    };
    let busy = sum(3)?;
    sum(2)?;
    let nanos = (busy + sum(2)?).checked_mul(1_000_000_000)?;
    Some(Duration::from_nanos(nanos.checked_div(ticks_per_second)?))
}

/// Sets the peak of a process's resident size to what it is now.
pub(crate) fn reset_peak(pid: u32) -> anyhow::Result<()> {
    let path = format!("/proc/{pid}/clear_refs");
    fs::write(&path, "5").with_context(|| format!("write {path}"))
}

/// The second field, the command, may hold anything: count from its last parenthesis.
fn cpu_time(stat: &str, ticks_per_second: u64) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    let nanos = (user + system).checked_mul(1_000_000_000)?;
    Some(Duration::from_nanos(nanos.checked_div(ticks_per_second)?))
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_parentheses_does_not_shift_the_fields() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194304 100 0 0 0 150 50 0 0 20 0 4 0 9 1 2 3";
        assert_eq!(cpu_time(stat, 100), Some(Duration::from_secs(2)));
        assert_eq!(cpu_time("7 (a", 100), None);
    }

    #[test]
    fn a_machine_is_busy_unless_it_is_idle_or_waits() {
        let stat = "cpu  100 10 50 9999 8888 7 33 0 0 0\ncpu0 1 2 3 4 5 6 7 8\n";
        assert_eq!(busy_time(stat, 100), Some(Duration::from_secs(2)));
        assert_eq!(busy_time("cpu  1 2", 100), Some(Duration::from_millis(30)));
        assert_eq!(busy_time("intr 1", 100), None);
    }

    #[test]
    fn fields_are_found_by_name() {
        let status = "Name:\tx\nVmHWM:\t   2048 kB\nVmRSS:\t   1024 kB\n";
        assert_eq!(field(status, "VmRSS:"), Some(1024));
        assert_eq!(field(status, "Threads:"), None);
    }

    #[test]
    fn this_process_can_be_read() {
        let usage = Usage::read(std::process::id()).unwrap();
        assert!(usage.rss_kib > 0 && usage.peak_kib >= usage.rss_kib);
        assert!(Usage::read(u32::MAX).is_err());
    }
}
