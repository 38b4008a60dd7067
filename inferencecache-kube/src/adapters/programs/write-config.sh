set -eu
printf 'chunk_size: %s\nmp_host: "127.0.0.1"\nmp_port: %s\n' "$2" "$3" > "$1"
shift 3
exec "$@"
