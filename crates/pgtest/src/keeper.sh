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

# Arguments: port, connections to each database, program.
pooler() {
    cat >"$folder/pooler-$1.ini" <<CONF
[databases]
* = host=$folder port=5432 user=postgres
[pgbouncer]
listen_addr =
listen_port = $1
unix_socket_dir = $folder
auth_type = any
pool_mode = transaction
default_pool_size = $2
max_client_conn = 200
logfile = $folder/pooler-$1.log
pidfile = $folder/pooler-$1.pid
CONF
    "$3" -d -q "$folder/pooler-$1.ini" >>"$folder/log" 2>&1 || fail "pgbouncer did not start"
    poolers="$poolers $1"
}
poolers=
halt_poolers() {
    for port in $poolers; do
        kill "$(cat "$folder/pooler-$port.pid")" 2>/dev/null
    done
}

start
echo "ok $folder"
while read -r order first second third; do
    case $order in
    pooler) pooler "$first" "$second" "$third" ;;
    encrypt)
        # As its own: it insists on owning its key.
        for file in server.pem server.key; do
            cat "$folder/given-$file" >"$folder/$file"
        done
        cat >>"$folder/data/postgresql.conf" <<CONF
listen_addresses = '$first'
ssl = on
ssl_cert_file = '$folder/server.pem'
ssl_key_file = '$folder/server.key'
CONF
        echo "hostssl all all 127.0.0.0/8 trust" >"$folder/data/pg_hba.conf"
        echo "local all all trust" >>"$folder/data/pg_hba.conf"
        stop
        start
        ;;
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
halt_poolers
stop
