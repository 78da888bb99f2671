#!/usr/bin/env bash
# Two hosts on this one machine, a and b: a network namespace, a name and an sshd each, a cable between them, for trying
# runs over several machines (as root; Debian: iproute2 openssh-server). As on a fresh Debian, a host's own name means
# 127.0.1.1 to itself.
#   bash benchmarks/hosts_here.sh start|stop
#   bash benchmarks/hosts_here.sh on a COMMAND…
set -euo pipefail
state=/tmp/hosts-here
addresses=(a:10.77.0.1 b:10.77.0.2)

stop() {
  for each in "${addresses[@]}"; do
    host=${each%%:*}
    ip netns pids "$host" 2>/dev/null | xargs -r kill -9 || true
    ip netns delete "$host" 2>/dev/null || true
    rm -rf "/etc/netns/$host"
  done
}

start() {
  stop
  mkdir -p "$state/bin" /run/sshd
  rm -f "$state"/key*
  ssh-keygen -q -t ed25519 -N "" -f "$state/key"
  printf '%s\n' "Host a b" "  IdentityFile $state/key" "  StrictHostKeyChecking no" \
    "  UserKnownHostsFile /dev/null" >"$state/ssh_config"
  printf '#!/bin/sh\nexec /usr/bin/ssh -F %s "$@"\n' "$state/ssh_config" >"$state/bin/ssh"
  chmod +x "$state/bin/ssh"
  for each in "${addresses[@]}"; do
    host=${each%%:*}
    ip netns add "$host"
    ip -n "$host" link set lo up
    mkdir -p "/etc/netns/$host"
    {
      printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$host"
      for other in "${addresses[@]}"; do [[ $other == "$each" ]] || echo "${other#*:} ${other%%:*}"; done
    } >"/etc/netns/$host/hosts"
  done
  ip link add cable-a netns a type veth peer name cable-b netns b
  for each in "${addresses[@]}"; do
    host=${each%%:*}
    ip -n "$host" address add "${each#*:}/24" dev "cable-$host"
    ip -n "$host" link set "cable-$host" up
    on "$host" /usr/sbin/sshd -h "$state/key" -o "AuthorizedKeysFile=$state/key.pub" -o StrictModes=no \
      -o "PidFile=$state/sshd-$host.pid"
  done
  on a ssh b hostname
}

on() {
  host=$1
  shift
  PATH=$state/bin:$PATH ip netns exec "$host" unshare --uts sh -c 'hostname "$0" && exec "$@"' "$host" "$@"
}

"$@"
