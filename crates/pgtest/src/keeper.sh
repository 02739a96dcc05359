# Keeps a PostgreSQL server until its input ends. $1 is the folder of the programs.
# Answers "ok TEXT" or says what went wrong and ends.
set -u
umask 077
bin=$1
# Short, because the path of a socket may not be long.
folder=$(mktemp -d /tmp/tidewater-pg-XXXXXX) || exit 1
trap 'rm -rf "$folder"' EXIT

fail() {
    echo "$1"
    tail -n 40 "$folder/log"
    exit 1
}

# Sorts as people do: what relies on bytewise order must say so.
init() {
    "$bin/initdb" -D "$folder/data" -U postgres --auth=trust --encoding=UTF8 --locale=C.UTF-8 \
        --no-sync --no-instructions "$@" >>"$folder/log" 2>&1
}
init --locale-provider=icu --icu-locale=en-US || {
    rm -rf "$folder/data"
    init || fail "initdb failed"
}
cat >>"$folder/data/postgresql.conf" <<CONF
listen_addresses = ''
unix_socket_directories = '$folder'
fsync = off
synchronous_commit = off
full_page_writes = off
wal_level = minimal
max_wal_senders = 0
max_connections = 300
shared_buffers = 64MB
jit = off
logging_collector = off
log_destination = stderr
CONF

start() {
    "$bin/pg_ctl" -D "$folder/data" -l "$folder/log" -w -t 60 start >>"$folder/log" 2>&1 ||
        fail "postgres did not start"
}
stop() {
    "$bin/pg_ctl" -D "$folder/data" -m immediate -w -t 60 stop >>"$folder/log" 2>&1
}
halt() {
    "$bin/pg_ctl" -D "$folder/data" -m fast -w -t 60 stop >>"$folder/log" 2>&1
}

start
echo "ok $folder"
while read -r order; do
    case $order in
    stop) stop ;;
    restart)
        stop
        start
        ;;
    recover)
        # What is to be recovered must say enough: once more with a log that does.
        echo "wal_level = replica" >>"$folder/data/postgresql.conf"
        halt
        start
        halt
        echo "restore_command = 'false'" >>"$folder/data/postgresql.conf"
        touch "$folder/data/recovery.signal"
        start
        "$bin/psql" -X -q -A -t -h "$folder" -U postgres -d postgres \
            -c "SELECT pg_promote()" >>"$folder/log" 2>&1
        ;;
    esac
    echo "ok $order"
done
stop
