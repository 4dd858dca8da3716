<?php
// Adds 1 to a number in a session, so many times, with PHP's handler as it is without settings.
[, $address, $id, $count] = $argv;
if (ini_get('memcached.sess_binary_protocol') != '1' || ini_get('memcached.sess_locking') != '1') {
    fwrite(STDERR, "sessions are locked and binary by default, but not here\n");
    exit(1);
}
ini_set('session.save_handler', 'memcached');
ini_set('session.save_path', $address);
ini_set('session.use_cookies', '0');

function open($id)
{
    session_id($id);
    // Who does not get the lock in five tries has to try again.
    while (!@session_start()) {
        usleep(1000);
    }
}

for ($i = 0; $i < $count; $i++) {
    open($id);
    $_SESSION['number'] = ($_SESSION['number'] ?? 0) + 1;
    if (!session_write_close()) {
        fwrite(STDERR, "the session is not written\n");
        exit(1);
    }
}
open($id);
echo $_SESSION['number'];
