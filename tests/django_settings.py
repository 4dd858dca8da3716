"""Settings of Django for test_django.py: caches on the server that DJANGO_MEMCACHED names, everything else as small as can be."""

import os

SECRET_KEY = "for tests"
USE_TZ = False
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DATABASES = {name: {"ENGINE": "django.db.backends.sqlite3"} for name in ("default", "other")}
CACHES = {
    name: {"BACKEND": f"django.core.cache.backends.memcached.{backend}", "LOCATION": os.environ["DJANGO_MEMCACHED"]}
    for name, backend in (("default", "PyLibMCCache"), ("pymemcache", "PyMemcacheCache"))
}
