<?php
// PHP's extension `memcached`, in the binary protocol.
function expect($seen, $expected, $what)
{
    if ($seen !== $expected) {
        fwrite(STDERR, "$what: expected " . var_export($expected, true) . ", seen " . var_export($seen, true) . "\n");
        exit(1);
    }
}

[$host, $port] = explode(':', $argv[1]);
$cache = new Memcached();
$cache->setOption(Memcached::OPT_BINARY_PROTOCOL, true);
$cache->addServer($host, (int) $port);
expect($cache->flush(), true, 'flush');
expect($cache->get('a'), false, 'get of nothing');
expect($cache->getResultCode(), Memcached::RES_NOTFOUND, 'its code');
$things = ['number' => 7, 'text' => 'Grüße', 'list' => [1, 2.5, null, true], 'long' => str_repeat('pumice ', 20000)];
expect($cache->setMulti($things, 100), true, 'setMulti');
expect($cache->getMulti(array_keys($things) + [9 => 'none']), $things, 'getMulti');
expect($cache->add('a', 'x'), true, 'add');
expect($cache->add('a', 'y'), false, 'add of what is there');
expect($cache->getResultCode(), Memcached::RES_DATA_EXISTS, 'its code');
expect($cache->replace('a', 'z'), true, 'replace');
expect($cache->replace('none', 'z'), false, 'replace of nothing');
$got = $cache->get('a', null, Memcached::GET_EXTENDED);
expect($got['value'], 'z', 'get with its CAS unique');
expect($cache->cas($got['cas'], 'a', 'first'), true, 'cas');
expect($cache->cas($got['cas'], 'a', 'second'), false, 'cas with an old one');
expect($cache->getResultCode(), Memcached::RES_DATA_EXISTS, 'its code');
expect($cache->increment('n', 5, 100), 100, 'increment of nothing');
expect($cache->increment('n', 5), 105, 'increment');
expect($cache->decrement('n', 1000), 0, 'decrement below 0');
expect($cache->increment('text'), false, 'increment of a text');
expect($cache->touch('a', 1000), true, 'touch');
expect($cache->touch('none', 1000), false, 'touch of nothing');
expect($cache->set('gone', 'x', -1), true, 'set of what is to be gone');
$cache->setOption(Memcached::OPT_COMPRESSION, false);
expect($cache->set('joined', 'b'), true, 'set');
expect($cache->append('joined', 'c'), true, 'append');
expect($cache->prepend('joined', 'a'), true, 'prepend');
expect($cache->get('joined'), 'abc', 'get of what was joined');
expect($cache->getDelayed(['a', 'joined', 'none'], true), true, 'getDelayed');
$fetched = $cache->fetchAll();
expect([$fetched[0]['value'], $fetched[1]['value'], count($fetched)], ['first', 'abc', 2], 'fetchAll');
expect($cache->delete('a'), true, 'delete');
expect($cache->delete('a'), false, 'delete of nothing');
expect($cache->deleteMulti(['n', 'none']), ['n' => true, 'none' => Memcached::RES_NOTFOUND], 'deleteMulti');
expect($cache->getVersion(), ["$host:$port" => '1.6.18'], 'getVersion');
expect(isset($cache->getStats()["$host:$port"]['curr_items']), true, 'curr_items in getStats');
expect($cache->set('large', str_repeat('x', (1 << 20) + 1)), false, 'set of what is too large');
expect($cache->getResultCode(), Memcached::RES_E2BIG, 'its code');
$cache->setOption(Memcached::OPT_BUFFER_WRITES, true);
$cache->setOption(Memcached::OPT_NO_BLOCK, true);
for ($i = 0; $i < 2000; $i++) {
    $cache->set("quiet$i", "value $i");
}
expect($cache->flushBuffers(), true, 'flushBuffers');
$keys = array_map(fn ($i) => "quiet$i", range(0, 1999));
expect(count($cache->getMulti($keys)), 2000, 'what was set quietly');
expect($cache->quit(), true, 'quit');
