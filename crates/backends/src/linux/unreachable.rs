//! Attempts to reach another host from a network namespace that has no way to any, by the kernel's counters
//! of it: connections without a route, and questions to a name server that is not there.

use stockade_fs::read_kernel_file;

use super::process_usage::shares_network;

/// Counters of IPv4: the protocol and the column.
const IPV4_COUNTERS: [(&str, &str); 2] = [("Ip:", "OutNoRoutes"), ("Udp:", "NoPorts")];
/// Counters of IPv6, one to a line.
const IPV6_COUNTERS: [&str; 2] = ["Ip6OutNoRoutes", "Udp6NoPorts"];

/// How many attempts the network namespace of a process has seen; none where it is the host's own.
pub(super) fn count_attempts(pid: i32) -> u64 {
    if shares_network(pid) {
        return 0;
    }
    let read = |file: &str| read_kernel_file(format!("/proc/{pid}/net/{file}")).unwrap_or_default();
    sum_ipv4(&read("snmp")).saturating_add(sum_ipv6(&read("snmp6")))
}

/// Adds up columns of a table that has a line of names and a line of numbers for each protocol.
fn sum_ipv4(snmp: &str) -> u64 {
    let lines: Vec<&str> = snmp.lines().collect();
    let value = |(protocol, column): (&str, &str)| -> Option<u64> {
        let mut rows = lines.iter().filter(|line| line.starts_with(protocol));
        let (names, numbers) = (rows.next()?, rows.next()?);
        let at = names.split_whitespace().position(|name| name == column)?;
        numbers.split_whitespace().nth(at)?.parse().ok()
    };
    IPV4_COUNTERS.into_iter().filter_map(value).fold(0, u64::saturating_add)
}

fn sum_ipv6(snmp6: &str) -> u64 {
    let value = |line: &str| -> Option<u64> {
        let (name, number) = line.split_once(char::is_whitespace)?;
        IPV6_COUNTERS.contains(&name).then(|| number.trim().parse().ok()).flatten()
    };
    snmp6.lines().filter_map(value).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables_are_read_by_the_names_of_their_columns() {
        let snmp = "Ip: Forwarding OutNoRoutes\nIp: 1 3\nUdp: InDatagrams NoPorts InErrors\nUdp: 9 4 7\n\
                    UdpLite: InDatagrams NoPorts\nUdpLite: 5 5\n";
        assert_eq!(sum_ipv4(snmp), 7);
        assert_eq!(sum_ipv4("Ip: OutNoRoutes\n"), 0);
        assert_eq!(sum_ipv6("Ip6InReceives \t8\nIp6OutNoRoutes \t2\nUdp6NoPorts\t1\n"), 3);
        assert_eq!(
            count_attempts(std::process::id().cast_signed()),
            0,
            "the host's own are not read"
        );
    }
}
